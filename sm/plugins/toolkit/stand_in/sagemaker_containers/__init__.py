"""The older toolkit, of the scikit-learn and XGBoost containers: the part that scripts import."""
