"""Scripts that were written for other serving systems: SageMaker's toolkit, MMS, and the article's class."""
