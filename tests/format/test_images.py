"""Images: pixels and files, stored as they are."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from hf_mds.errors import FormatError
from hf_mds.format.encodings import parse_encoding

PIXELS = np.random.default_rng(0).integers(0, 256, (16, 12, 3), np.uint8)


def image(mode: str = "RGB") -> PIL.Image.Image:
    return PIL.Image.fromarray(PIXELS).convert(mode)


def file_of(picture: PIL.Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format=form, **options)
    return buffer.getvalue()


def same(got: PIL.Image.Image, expected: PIL.Image.Image) -> bool:
    return (got.mode, got.size, got.tobytes()) == (expected.mode, expected.size, expected.tobytes())


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "I", "F", "HSV", "LAB"])
def test_pil_keeps_every_mode(mode: str) -> None:
    picture = image("RGB" if mode == "LAB" else mode)
    if mode == "LAB":
        picture = PIL.Image.frombytes("LAB", picture.size, picture.tobytes())
    encoding = parse_encoding("pil")
    data = encoding.encode(picture)
    assert data[: 12 + len(mode)] == struct.pack("<III", 12, 16, len(mode)) + mode.encode()
    assert same(encoding.decode(data), picture)


def test_pil_would_lose_a_palette() -> None:
    with pytest.raises(ValueError, match=r"without a palette.*convert\('RGB'\).*png"):
        parse_encoding("pil").encode(image("P"))
    png = parse_encoding("png")
    assert same(png.decode(png.encode(image("P"))).convert("RGB"), image("P").convert("RGB"))


@pytest.mark.parametrize(("name", "form"), [("jpeg", "JPEG"), ("png", "PNG")])
def test_files_pass_through_and_images_are_saved_as_pillow_does(name: str, form: str) -> None:
    encoding = parse_encoding(name)
    data = file_of(image(), form)
    assert encoding.encode(data) == data
    assert encoding.encode(image()) == data
    assert same(encoding.decode(data), PIL.Image.open(io.BytesIO(data)))


@pytest.fixture
def jpeg(tmp_path: Path) -> Path:
    """A file that Pillow's defaults would not write again."""
    path = tmp_path / "picture.jpg"
    path.write_bytes(file_of(image(), "JPEG", quality=35, comment=b"mine"))
    return path


@pytest.mark.parametrize("loaded", [False, True])
def test_an_image_opened_from_a_jpeg_file_is_stored_as_the_files_own_bytes(jpeg: Path, loaded: bool) -> None:
    for source in (jpeg, str(jpeg)):
        picture = PIL.Image.open(source)
        if loaded:
            picture.load()
        assert parse_encoding("jpeg").encode(picture) == jpeg.read_bytes()
        assert same(picture, PIL.Image.open(jpeg))
        picture.close()
    picture = PIL.Image.open(io.BytesIO(jpeg.read_bytes()))
    assert parse_encoding("jpeg").encode(picture) == jpeg.read_bytes()
    assert same(picture, PIL.Image.open(jpeg))


def test_an_image_that_was_changed_since_is_not_its_file(jpeg: Path) -> None:
    picture = PIL.Image.open(jpeg)
    picture.putpixel((0, 0), (1, 2, 3))
    assert parse_encoding("jpeg").encode(picture) == file_of(picture, "JPEG")


def test_a_file_that_was_changed_since_is_not_the_image(jpeg: Path) -> None:
    picture = PIL.Image.open(jpeg)
    picture.load()
    for content in (file_of(image().transpose(PIL.Image.Transpose.ROTATE_180), "JPEG"), b"no image", None):
        jpeg.unlink()
        if content is not None:
            jpeg.write_bytes(content)
        stored = parse_encoding("jpeg").encode(picture)
        assert stored != content
        assert PIL.Image.open(io.BytesIO(stored)).size == picture.size
        if content is None:
            break


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("pil", PIXELS, r"must be a PIL\.Image\.Image, got ndarray"),
        ("pil", b"x", r"must be a PIL\.Image\.Image, got bytes"),
        ("jpeg", PIXELS, r"must be a PIL\.Image\.Image or the bytes of a JPEG file, got ndarray"),
        ("png", None, r"must be a PIL\.Image\.Image or the bytes of a PNG file, got NoneType"),
        ("jpeg", image("RGBA"), "that JPEG can hold, got mode 'RGBA'"),
        ("list[png]", image(), "must be a list of images, got Image"),
        ("list[png]", b"x", "must be a list of images, got bytes"),
        ("list[pil]", [image(), 3], r"image 1 must be a PIL\.Image\.Image, got int"),
        ("list[pil]", [b"x"], "image 0 must be"),
        ("jpeg_array", [], "must hold an image at least"),
    ],
)
def test_refused(name: str, value: Any, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        parse_encoding(name).encode(value)


@pytest.mark.parametrize("name", ["list[pil]", "list[jpeg]", "list[png]", "jpeg_array", "jpegarray"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_lists(name: str, count: int) -> None:
    count = count or (0 if name.startswith("list") else 2)  # the others must hold one
    encoding, pictures = parse_encoding(name), [image("L"), image(), image("L")][:count]
    data = encoding.encode(pictures)
    head = bytes(4) if name.startswith("list") else b""
    assert data.startswith(head + struct.pack("<I", count))
    got = encoding.decode(data)
    assert [one.size for one in got] == [one.size for one in pictures]
    if name in ("list[pil]", "list[png]"):
        assert all(map(same, got, pictures))
    else:
        files = [file_of(one, "JPEG") for one in pictures]
        sizes = struct.pack(f"<{count}I", *map(len, files))
        assert data == head + struct.pack("<I", count) + sizes + b"".join(files)
        assert encoding.encode(files) == data


PNG = file_of(image(), "PNG")


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("pil", b"short", "12 bytes of header"),
        ("pil", struct.pack("<III", 1, 1, 99) + b"L\0", "mode must be"),
        ("pil", struct.pack("<III", 1, 1, 1) + b"\xff\0", "mode must be"),
        ("pil", struct.pack("<III", 1, 1, 3) + b"XYZ\0", "mode 'XYZ'"),
        ("pil", struct.pack("<III", 2, 2, 1) + b"L123", "mode 'L'"),
        ("pil", struct.pack("<III", 2, 2, 1) + b"L12345", "mode 'L': its pixels take 4 bytes, not 5"),
        ("pil", struct.pack("<III", 1 << 31, 1 << 31, 1) + b"L1", "its pixels take 4611686018427387904 bytes, not 1"),
        ("pil", struct.pack("<III", 0, 5, 1) + b"L1", "pil image"),
        ("png", b"", "file that Pillow can open"),
        ("png", b"no image at all", "file that Pillow can open"),
        ("png", PNG[:60], "file that Pillow can open"),
        ("jpeg", file_of(image(), "JPEG")[:400], "file that Pillow can open"),
        ("list[png]", b"", "must begin with"),
        ("list[png]", struct.pack("<II", 1, 0), "must begin with"),
        ("list[png]", struct.pack("<II", 0, 5), "must have a size for each, got 5 images"),
        ("list[png]", struct.pack("<II", 0, (1 << 32) - 1), "must have a size for each"),
        ("list[png]", struct.pack("<III", 0, 1, 99) + PNG[:10], "must fill its bytes, got 99"),
        ("list[png]", struct.pack("<III", 0, 1, 3) + b"abc", "image 0: an image must be a file"),
        ("jpeg_array", struct.pack("<I", 7), "must have a size for each"),
    ],
)
def test_bytes_that_are_no_image(name: str, data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        parse_encoding(name).decode(data)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(FormatError, match=r"file that Pillow can open.*exceeds"):
        parse_encoding("png").decode(PNG)
