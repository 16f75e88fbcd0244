"""The smallest training script that a test can hold up: slow steps until a file is there."""

TINY = """
import pathlib, sys, time
import torch
from torch.utils.data import TensorDataset
import reknit

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
gate = pathlib.Path(sys.argv[1])
with reknit.join() as ring:
    ring.track(model=model, optimizer=optimizer)
    for step in ring.steps(data, micro_batch=4, slots=4, epochs=int(sys.argv[2]), seed=0):
        for x, y in step:
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        if not gate.exists():
            time.sleep(0.05)
print("trained", flush=True)
"""
"""Arguments: the file (the gate), and epochs. Steps take 50 ms until it is there; ends with the line `trained`."""
