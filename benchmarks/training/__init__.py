"""Models trained with either loader: accuracy and other scores."""
