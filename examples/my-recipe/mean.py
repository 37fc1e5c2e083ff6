"""Lies in the image at /opt/my-recipe/mean.py: the mean image of what all ranks hold."""

import numpy as np
from einops import reduce

from fairlead import comm

images = np.full((4, 8, 8, 3), comm.rank(), np.float32)
mean = comm.aggregate([reduce(images, "batch y x colour -> y x colour", "mean")])[0]
if comm.rank() == 0:
    print(f"mean over {comm.size()} rank(s): {mean.mean():g}")
comm.finalize()
