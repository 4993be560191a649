"""Users' models: `training` steps, `inference` on all nodes, rows of other ranks (`remote`)."""
