"""Write tables and pages about finished runs and data sets."""
