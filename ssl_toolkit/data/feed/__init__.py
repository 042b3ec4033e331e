"""Give a training run its images, in an order that depends on the seed alone."""
