"""Use a trained model: evaluate, predict, pseudo-label and export."""
