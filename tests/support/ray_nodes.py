"""Start two nodes of Ray on this machine, in a separate process.

It prints the address, removes the second node at each line of its input, and ends with the input.
"""

import sys

from ray.cluster_utils import Cluster

MEMORY = 80_000_000

if __name__ == "__main__":
    head = {"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        second = cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
        print(cluster.address, flush=True)
        for _ in sys.stdin:
            cluster.remove_node(second, allow_graceful=False)
            print("lost", flush=True)
    finally:
        cluster.shutdown()
