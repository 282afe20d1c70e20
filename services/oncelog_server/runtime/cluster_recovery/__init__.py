"""`oncelog cluster recover`: what stood in a lost etcd, rebuilt from data directories
(docs/adr/0004). `inventory` looks, `plan` judges, `perform` writes."""
