"""Log to MLflow."""

from ssl_toolkit_mlflow.logger import MLflow

__all__ = ["MLflow"]
