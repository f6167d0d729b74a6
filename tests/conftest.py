"""What holds for every test."""

import torch

torch.set_num_threads(1)  # on small tensors, threads mostly wait for each other
