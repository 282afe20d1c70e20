"""`oncelog cluster recover`: what stood in a lost etcd, rebuilt from data directories (design §5,
"When etcd or too many replicas are lost"). `inventory` looks, `plan` judges, `perform` writes."""
