"""etcd, as processes use it. One comes up in this order, and goes in reverse (`membership` and
`elections` are of `runtime/leadership`):

identity = Identity(disk, etcd, ...)        record = await identity.join(settings)
view = ClusterView(etcd, cluster_id=record.cluster_id, guard=identity, ...)
                                            await view.start()
membership = Membership(etcd, ...)          await membership.start(previous_boot_id=...)
                                            await identity.remember_boot(boot_id)
                                            await view.wait_for(<own boot is in view.nodes()>)
                                            await create_control_partitions(etcd, view, role, ...)
topics = EtcdTopics(etcd, view, ...)
elections = Elections(etcd, view, ...)      await elections.start()

stop: elections.stop, membership.stop, view.stop, identity.stop, etcd.close
"""
