"""MLflow, TensorBoard, trackio and Weights & Biases: trackers for `posttrain track`."""
