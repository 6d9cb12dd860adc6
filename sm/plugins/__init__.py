"""Client plugins: find, load, check and reload them; scripts of the SageMaker toolkit as clients."""
