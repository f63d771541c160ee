"""What a rank computes on, in words."""

import torch

from ddp_tokens.hardware import cores, cpu_memory, cpu_name, gibibytes


def described_device(device: str) -> str:
    """Name and memory: of the GPU, or of this machine's CPU with the cores that this process may use."""
    if device.startswith("cuda"):
        memory = torch.cuda.get_device_properties(device).total_memory
        return f"{device}, {torch.cuda.get_device_name(device)}, {gibibytes(memory)}"
    return f"cpu, {cpu_name()}, {cores()} core{'s' if cores() > 1 else ''}, {gibibytes(cpu_memory())}"
