import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Tensor

from sora.data import Augment, Transform
from sora.data.augment import resized
from sora.errors import UserError

torch.set_num_threads(1)


def noise(n: int = 16, channels: int = 3, size: int = 32) -> Tensor:
    images = torch.randint(0, 256, (n, size, size, channels), generator=rng(), dtype=torch.uint8)
    return images.permute(0, 3, 1, 2)


def smooth(n: int = 8, size: int = 64) -> Tensor:
    small = torch.rand(n, 3, 8, 8, generator=rng())
    large = torch.nn.functional.interpolate(small, size=(size, size), mode="bicubic").clamp(0, 1)
    return (large * 255).round().to(torch.uint8)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pil(image: Tensor) -> Image.Image:
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(np.ascontiguousarray(array[:, :, 0] if array.shape[2] == 1 else array))


def tensor(image: Image.Image) -> Tensor:
    array = np.asarray(image)
    return torch.from_numpy(array.copy()).reshape(*array.shape[:2], -1).permute(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_crop_and_flip_equal_pillow_exactly(channels: int) -> None:
    images = noise(channels=channels)
    done = Augment.parse(("crop:4", "flip")).draw(16, (32, 32), rng())
    result = done(images)
    assert done.top is not None
    assert done.left is not None
    assert done.flip is not None
    assert 0 < done.flip.sum() < 16
    # Images and perturbations move together.
    padded = torch.nn.functional.pad(images.float(), [4] * 4)
    assert torch.equal(done.from_canvas(padded), result.float())
    for i in range(16):
        padded = ImageOps.expand(pil(images[i]), 4, 0)
        top, left = int(done.top[i]), int(done.left[i])
        expected = padded.crop((left, top, left + 32, top + 32))
        expected = ImageOps.mirror(expected) if done.flip[i] else expected
        assert torch.equal(result[i], tensor(expected))


@pytest.mark.parametrize("size", [28, 33])
def test_rotation_equals_pillow_nearest(size: int) -> None:
    images = noise(32, size=size)
    done = Augment.parse(("rotate:10",)).draw(32, (size, size), rng())
    assert done.angle is not None
    assert done.angle.abs().max() <= 10
    assert done.angle.min() < 0 < done.angle.max()
    pairs = zip(images, done.angle.tolist(), strict=True)
    expected = torch.stack([tensor(pil(im).rotate(a, Image.Resampling.NEAREST)) for im, a in pairs])
    assert (done(images) == expected).float().mean() >= 0.995


@pytest.mark.parametrize("images", [smooth(size=64), noise(8, size=64)], ids=["smooth", "noise"])
@pytest.mark.parametrize("size", [32, 56, 96])
def test_resized_crop_equals_pillow(images: Tensor, size: int) -> None:
    done = Augment.parse((f"resized-crop:{size}",)).draw(8, (64, 64), rng())
    result = done(images)
    assert result.shape == (8, 3, size, size)
    assert done.box is not None
    for i in range(8):
        top, left, height, width = done.box[i].tolist()
        crop = pil(images[i]).crop((int(left), int(top), int(left + width), int(top + height)))
        expected = tensor(crop.resize((size, size), Image.Resampling.BILINEAR))
        assert (result[i].float() - expected.float()).abs().mean() <= 2


@pytest.mark.parametrize(("height", "width", "side"), [(32, 32, 16), (32, 32, 24), (16, 48, 8), (20, 10, 30)])
def test_resized_equals_torchs_antialiased_interpolation(height: int, width: int, side: int) -> None:
    images = torch.rand(4, 3, height, width, generator=rng())
    size = (side, width * side // height)
    expected = torch.nn.functional.interpolate(images, size, mode="bilinear", antialias=True)
    result = resized(images.contiguous(memory_format=torch.channels_last), side)
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)
    assert resized(images, height) is images


@given(seed=st.integers(0, 2**31), height=st.integers(4, 300), width=st.integers(4, 300))
@settings(max_examples=30)
def test_resized_crop_boxes_lie_inside(seed: int, height: int, width: int) -> None:
    box = Augment.parse(("resized-crop:8",)).draw(20, (height, width), rng(seed)).box
    assert box is not None
    assert (box[:, :2] >= 0).all()
    assert (box[:, 2:] >= 1).all()
    assert (box[:, 0] + box[:, 2] <= height).all()
    assert (box[:, 1] + box[:, 3] <= width).all()


def test_crop_reaches_every_offset_evenly() -> None:
    done = Augment.parse(("crop:2",)).draw(10_000, (8, 8), rng())
    assert done.top is not None
    counts = done.top.bincount(minlength=5)
    assert len(counts) == 5
    assert counts.min() > 1800


@given(seed=st.integers(0, 2**31), flip=st.booleans(), pad=st.integers(1, 4))
@settings(max_examples=25)
def test_canvas_round_trip(seed: int, flip: bool, pad: int) -> None:
    operations = (f"crop:{pad}", "flip") if flip else (f"crop:{pad}",)
    done = Augment.parse(operations).draw(5, (8, 6), rng(seed))
    height, width = done.canvas_size(8, 6)
    assert (height, width) == (8 + 2 * pad, 6 + 2 * pad)
    canvas = torch.rand(5, 3, height, width, generator=rng(seed))
    assert torch.equal(done.to_canvas(canvas, done.from_canvas(canvas)), canvas)
    changed = done.to_canvas(canvas, torch.full((5, 3, 8, 6), 7.0))
    assert (changed == 7).sum() == 5 * 3 * 8 * 6
    assert torch.equal(changed[changed != 7], canvas[changed != 7])
    assert torch.equal(done.from_canvas(changed), torch.full((5, 3, 8, 6), 7.0))


def test_rotated_perturbation_stays_in_its_ball_and_comes_back() -> None:
    done = Augment.parse(("flip", "rotate:10")).draw(8, (28, 28), rng())
    canvas = (smooth(8, 28).float() / 255 - 0.5) * 0.2
    there = done.from_canvas(canvas)
    back = done.to_canvas(canvas, there)
    assert there.abs().max() <= canvas.abs().max() + 1e-6
    assert back.abs().max() <= canvas.abs().max() + 1e-6
    inner = (slice(None), slice(None), slice(5, 23), slice(5, 23))
    assert (back - canvas)[inner].abs().mean() < 0.1 * canvas[inner].abs().mean()
    assert torch.equal(there, done(canvas))  # pixel by pixel as the image itself


def test_no_augmentation_changes_nothing_and_a_slice_of_the_record_is_the_record_of_a_slice() -> None:
    images = noise()
    done = Augment.parse(()).draw(16, (32, 32), rng())
    assert torch.equal(done(images), images)
    canvas = torch.rand(16, 3, *done.canvas_size(32, 32))
    assert torch.equal(done.to_canvas(canvas, done.from_canvas(canvas)), canvas)
    done = Augment.parse(("crop:4", "flip", "rotate:10")).draw(16, (32, 32), rng())
    assert torch.equal(done[4:9](images[4:9]), done(images)[4:9])


def test_resized_crop_cannot_be_inverted() -> None:
    done = Augment.parse(("resized-crop:16", "flip")).draw(2, (32, 32), rng())
    canvas = torch.zeros(2, 3, 32, 32)
    for move in (done.from_canvas, lambda canvas: done.to_canvas(canvas, canvas)):
        with pytest.raises(UserError, match="resized crop cannot be inverted"):
            move(canvas)


PAD = "crop:PAD with PAD an integer from 1 to 4096"
SIZE = "resized-crop:SIZE with SIZE an integer from 1 to 4096"
DEGREES = "rotate:DEGREES with DEGREES above 0 and at most 180"


@pytest.mark.parametrize(
    ("operations", "allowed"),
    [
        (("crop",), PAD), (("crop:0",), PAD), (("crop:x",), PAD), (("crop:-1",), PAD), (("crop:4.5",), PAD),
        (("crop:5000",), PAD), (("resized-crop",), SIZE), (("rotate:nan",), DEGREES),
        (("rotate:360",), DEGREES), (("flip:2",), "flip"), (("spin",), ""), (("",), ""),
        (("flip", "flip"), ""), (("crop:4", "resized-crop:32"), ""),
    ],
)  # fmt: skip
def test_an_error_is_one_line_that_says_what_is_allowed(operations: tuple[str, ...], allowed: str) -> None:
    with pytest.raises(UserError) as caught:
        Augment.parse(operations)
    assert "\n" not in str(caught.value)
    if allowed:
        assert str(caught.value) == f"augmentation {operations[0]!r} must be written {allowed}"


def test_the_largest_amounts_are_allowed_and_the_record_is_immutable() -> None:
    assert Augment.parse(("crop:4096", "rotate:180")) == Augment(pad=4096, degrees=180.0)
    with pytest.raises(AttributeError):
        Transform().pad = 3  # type: ignore[misc]
