"""URLs: every verb on objects behind them, against a server that speaks S3 and a proxy that makes it fail."""
