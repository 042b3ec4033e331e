"""Create plugins/digits/ssl_toolkit_digits/digits.npz from scikit-learn's copy of the UCI digits.

    python benchmarks/make_digits.py [PATH]

Source and license: plugins/digits/ssl_toolkit_digits/LICENSE-digits.md.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def main() -> None:
    default = Path(__file__).parents[1] / "plugins/digits/ssl_toolkit_digits/digits.npz"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    if not (images == digits.images).all() or images.shape != (1797, 8, 8) or images.max() != 16:
        raise SystemExit("scikit-learn's digits changed: expected 1,797 images with levels 0 to 16")
    np.savez_compressed(path, images=images, labels=digits.target.astype(np.uint8))
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
