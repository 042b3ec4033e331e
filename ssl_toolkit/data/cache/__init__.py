"""Keep decoded images in files that later runs map into memory."""
