"""LABOR, dependent batches and orders of seeds against plain sampling."""
