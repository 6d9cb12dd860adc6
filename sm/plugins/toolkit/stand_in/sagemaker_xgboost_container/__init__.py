"""What scripts of the XGBoost container import."""
