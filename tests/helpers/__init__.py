"""What several tests share: small models, data sets, processes."""
