"""Where images come from: data sets, folders, splits, the image store and index streams."""
