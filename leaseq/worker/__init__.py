"""The Celery edge; importing it loads no worker machinery."""
