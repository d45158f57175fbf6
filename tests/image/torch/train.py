import os
import torch

torch.distributed.init_process_group("gloo")
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
total = torch.full((100000,), rank + 1.0)
torch.distributed.all_reduce(total)
torch.distributed.barrier()
# A single write, because the ranks share the output file.
os.write(1, f"{rank} {size} {total.sum().item()}\n".encode())
torch.distributed.destroy_process_group()
