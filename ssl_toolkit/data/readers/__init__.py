"""Read folders, manifests, archives and arrays into image tables."""
