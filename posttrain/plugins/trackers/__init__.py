"""MLflow, TensorBoard, trackio and Weights & Biases: trackers of `posttrain track`."""
