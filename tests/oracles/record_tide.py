"""Record TIDE of made-up predictions by the package ``tidecv`` 1.0.1.

    pip install --target FOLDER --no-deps tidecv==1.0.1 pandas seaborn appdirs
    PYTHONPATH=FOLDER python tests/oracles/record_tide.py

Figures go to ``tide.pt``, with the data that they are of: AP, the AP lost to
each kind of error, and how many boxes are of that kind.
"""

from pathlib import Path

import numpy as np
import torch

NUM_CLASSES = 14
NUM_IMAGES = 50


def made_up(rng):
    """Objects and boxes as rows, scores of many of them equal.

    Class 12 has no object, class 13 no box; images 0 to 2 have no object,
    images 2 to 4 no box; image 9 has more boxes than count.
    """
    objects, boxes = [], []
    for image in range(NUM_IMAGES):
        size = 0 if image < 3 else rng.integers(2, 9)
        labels = rng.choice([*range(12), 13], size)
        corners = rng.uniform(0, 120, (size, 2))
        sides = rng.integers(8, 90, (size, 2)).astype(float)
        crowds = rng.random(size) < 0.1
        for row in zip(labels, corners, sides, crowds):
            label, corner, side, crowd = row
            objects.append([image, label, *corner, *side, crowd])
            # Near it by more or less, some of another class, some twice.
            for _ in range(rng.integers(0, 4)):
                move = rng.normal(0, 0.12, 4) * [*side, *side]
                other = rng.random() < 0.3
                own = rng.integers(13) if other else min(label, 12)
                near = [*(corner + move[:2]), *np.maximum(side + move[2:], 2)]
                boxes.append([image, own, *near, rng.random()])
        if image in range(2, 5):
            boxes = [row for row in boxes if row[0] != image]
            continue
        for _ in range(110 if image == 9 else rng.integers(1, 6)):
            side = rng.integers(8, 90, 2)
            corner = rng.uniform(0, 120, 2)
            boxes.append([image, rng.integers(13), *corner, *side])
            boxes[-1].append(rng.random() / 2)
    # Exactly half of an object, and exactly the same place.
    objects += [[9, 1, 300, 300, 20, 20, 0], [9, 2, 400, 400, 30, 30, 0]]
    boxes += [[9, 1, 300, 300, 20, 10, 0.9], [9, 1, 300, 310, 20, 10, 0.8]]
    boxes += [[9, 2, 400, 400, 30, 30, 0.7], [9, 3, 400, 400, 30, 30, 0.7]]
    objects, boxes = (np.array(rows, float) for rows in (objects, boxes))
    boxes[:, -1] = boxes[:, -1].round(3)
    return torch.tensor(objects), torch.tensor(boxes)


def main():
    objects, boxes = made_up(np.random.default_rng(38))
    # Not at the top: pytest imports this file, without the package.
    from tidecv import TIDE, Data

    truth, told = Data('truth'), Data('told')
    for image in range(NUM_IMAGES):
        truth.add_image(image, str(image))
    for image, label, *box, crowd in objects.tolist():
        add = truth.add_ignore_region if crowd else truth.add_ground_truth
        add(int(image), int(label), box)
    for image, label, *box, score in boxes.tolist():
        told.add_detection(int(image), int(label), score, box)
    tide = TIDE()
    run = tide.evaluate(truth, told, mode=TIDE.BOX)
    errors = tide.get_all_errors()
    figures = {
        'AP': float(run.ap),
        **{k: float(v) for k, v in errors['main']['told'].items()},
        **{k: float(v) for k, v in errors['special']['told'].items()},
    }
    counts = {k.short_name: v for k, v in run.count_errors().items()}
    content = {'objects': objects, 'boxes': boxes}
    content |= {'figures': figures, 'counts': counts}
    torch.save(content, Path(__file__).with_name('tide.pt'))
    print(len(objects), int(objects[:, -1].sum()), len(boxes))
    print(figures)
    print(counts)


if __name__ == '__main__':
    main()
