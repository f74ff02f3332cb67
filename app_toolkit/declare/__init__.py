"""What users declare: the toolkit, its deployments and splits, and the plan that follows from them."""
