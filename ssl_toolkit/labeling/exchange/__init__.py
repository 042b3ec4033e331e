"""Files of labeling tools: tasks and answers of Label Studio, CVAT, FiftyOne and tables."""
