import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from lightning_prune.prune.kernels import arrays, pieces, smallest
from lightning_prune.prune.kernels import random as random_kernel
from lightning_prune.prune.kernels.random import random_keep_masks
from lightning_prune.prune.kernels.smallest import keep_masks

INF, NAN = float("inf"), float("nan")
Alive = Sequence[Tensor | None]


def by_stable_sort(scores: Sequence[Tensor], count: int, alive: Alive | None = None) -> list[Tensor]:
    alive = alive or [None] * len(scores)
    living = [torch.ones(s.shape, dtype=torch.bool) if a is None else a for s, a in zip(scores, alive, strict=True)]
    keep = torch.cat([mask.reshape(-1) for mask in living])
    where = keep.nonzero().view(-1)
    magnitudes = torch.cat([score.detach().to(torch.complex128).abs().reshape(-1) for score in scores])
    keep[where[magnitudes[where].sort(stable=True).indices[:count]]] = False
    parts = torch.split(keep, [score.numel() for score in scores])
    return [part.view(score.shape) for part, score in zip(parts, scores, strict=True)]


def assert_as_by_stable_sort(scores: Sequence[Tensor], count: int, alive: Alive | None = None) -> None:
    before = [score.clone() for score in scores]
    masks = keep_masks(scores, count, alive=alive)
    assert [mask.dtype for mask in masks] == [torch.bool] * len(scores)
    for mask, expected in zip(masks, by_stable_sort(scores, count, alive), strict=True):
        assert torch.equal(mask, expected)
    for score, copy in zip(scores, before, strict=True):
        torch.testing.assert_close(score, copy, rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def _tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors go through pieces, samples, misleading samples and bisection as large ones do."""
    monkeypatch.setattr(pieces, "_PIECE_CPU", 101)
    monkeypatch.setattr(smallest, "_DIRECT", 20)


# Random cases


def plain(x: Tensor) -> Tensor:
    return x


def rounded(x: Tensor) -> Tensor:
    return torch.view_as_real(x).round().sum(-1).to(x.dtype) if x.is_complex() else x.round()


def some_infinite(x: Tensor) -> Tensor:
    x.view(-1)[::7] = INF
    return x


def ascending(x: Tensor) -> Tensor:
    return x.abs().view(-1).sort().values.view(x.shape)


def outlier(x: Tensor) -> Tensor:
    x.view(-1)[:1] *= 1e4
    return x


def transposed(x: Tensor) -> Tensor:
    return x.transpose(0, -1) if x.dim() else x


def every_other(x: Tensor) -> Tensor:
    return x[..., ::2] if x.dim() else x


def expanded(x: Tensor) -> Tensor:
    return x.unsqueeze(0).expand(3, *x.shape)


SHAPES: list[Callable[[Tensor], Tensor]] = [
    plain,
    rounded,
    torch.ones_like,
    torch.zeros_like,
    torch.sgn,
    lambda x: x * 1e-42,
    some_infinite,
    ascending,
    outlier,
    transposed,
    every_other,
    expanded,
    lambda x: x if x.is_complex() else torch.complex(x.float(), x.float()).conj().imag,
]
DTYPES = [torch.float32] * 3 + [torch.bfloat16, torch.float16, torch.float64, torch.complex64]


def random_scores(rng: random.Random) -> Tensor:
    sizes = [rng.randint(0, 8) for _ in range(rng.randint(0, 4))]
    shape = sizes if rng.random() < 0.7 else [rng.randint(1, 600)]
    return rng.choice(SHAPES)(torch.randn(shape, dtype=rng.choice(DTYPES)))


def random_alive(rng: random.Random, scores: Tensor) -> Tensor | None:
    return None if rng.random() < 0.5 else torch.rand(scores.shape) < rng.random()


def check_random_case(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    scores = [random_scores(rng) for _ in range(rng.randint(1, 4))]
    alive = [random_alive(rng, score) for score in scores]
    if rng.random() < 0.3:
        scores = [s if a is None else torch.where(a, s, NAN) for s, a in zip(scores, alive, strict=True)]
    living = sum(s.numel() if a is None else int(a.sum()) for s, a in zip(scores, alive, strict=True))
    assert_as_by_stable_sort(scores, rng.choice([0, living, *[rng.randint(0, living) for _ in range(4)]]), alive)


@pytest.mark.usefixtures("_tiny_pieces")
@pytest.mark.parametrize("first", range(0, 1200, 100))
def test_random_cases_in_tiny_pieces(first: int) -> None:
    for seed in range(first, first + 100):
        check_random_case(seed)


@pytest.fixture
def _no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is done with tensors, as on accelerators."""
    for module in (arrays, pieces, smallest, random_kernel):
        monkeypatch.setattr(module, "as_array", lambda tensor: tensor)


@pytest.mark.usefixtures("_tiny_pieces", "_no_arrays")
def test_random_cases_as_on_accelerators() -> None:
    for seed in range(3000, 3300):
        check_random_case(seed)


def test_random_cases_in_one_piece() -> None:
    for seed in range(2000, 2800):
        check_random_case(seed)


# Tensors of several pieces, large enough to be sampled

SIZE = 400_000


def misleading(x: Tensor) -> Tensor:
    pieces = x.clone().view(4, -1)
    pieces[:, 38::77] = 1  # the entries that are sampled
    return pieces.view(-1)


LARGE: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": plain,
    "ascending": ascending,
    "descending": lambda x: ascending(x).flip(0),
    "organ pipe": lambda x: torch.cat([ascending(x)[::2], ascending(x)[1::2].flip(0)]),
    "two values": lambda x: 1 + (x > 0).float(),
    "equal": lambda x: torch.full_like(x, -3.0),
    "half zeros": lambda x: x * (torch.rand_like(x) < 0.5),
    "outliers": lambda x: torch.where(torch.arange(SIZE) % 1000 == 0, 1e30, x),
    "mostly infinite": lambda x: torch.where(torch.rand_like(x) < 0.2, x, INF),
    "denormal": lambda x: x * 1e-41,
    "bfloat16": lambda x: x.bfloat16(),
    "misleading, larger": lambda x: misleading(2 + x.abs()),
    "misleading, zero": lambda x: misleading(torch.zeros_like(x)),
    "misleading, infinite": lambda x: misleading(torch.full_like(x, INF)),
    "one large column": lambda x: x.view(1000, 400) * (1 + 999.0 * (torch.arange(400) == 0)),
    "transposed": lambda x: x.view(1000, 400).t(),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_tensors(name: str) -> None:
    torch.manual_seed(0)
    scores = LARGE[name](torch.randn(SIZE))
    for count in (1, SIZE // 5, SIZE // 2, SIZE - 7):
        assert_as_by_stable_sort([scores], count)


@pytest.mark.usefixtures("_no_arrays")
@pytest.mark.parametrize("name", ["normal", "equal", "misleading, larger", "transposed"])
def test_large_tensors_as_on_accelerators(name: str) -> None:
    torch.manual_seed(0)
    scores = LARGE[name](torch.randn(SIZE))
    for count in (1, SIZE // 5, SIZE - 7):
        assert_as_by_stable_sort([scores], count)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.001])
def test_large_tensors_of_which_little_is_left(share: float) -> None:
    scores = [torch.randn(SIZE), torch.randn(500, 400)]
    alive = [torch.rand(score.shape) < share for score in scores]
    assert_as_by_stable_sort(scores, int(200_000 * share), alive)


# Cases by value


def test_equal_magnitudes_are_dropped_in_order() -> None:
    scores = [torch.tensor([[2.0, -1.0], [1.0, 3.0]]), torch.tensor([-1.0, 1.0, 0.0])]
    masks = keep_masks(scores, 3)
    assert masks[0].tolist() == [[True, False], [False, True]]
    assert masks[1].tolist() == [True, True, False]


def test_masks_of_a_subclass_say_what_lives() -> None:
    class Marked(Tensor):
        pass

    alive = [torch.tensor([True, False, True]).as_subclass(Marked)]
    assert keep_masks([torch.tensor([3.0, 0.0, 2.0])], 1, alive=alive)[0].tolist() == [True, False, False]
    assert int(random_keep_masks([torch.empty(3)], 1, alive=alive)[0].sum()) == 1


@pytest.mark.parametrize("select", [keep_masks, random_keep_masks])
def test_under_deterministic_algorithms_and_default_devices(select: Callable[..., list[Tensor]]) -> None:
    scores = [torch.randn(30_000), torch.randn(40, 50).t(), torch.ones(9, 9)]
    torch.use_deterministic_algorithms(True)
    try:
        with torch.device("meta"):
            masks = select(scores, 20_000)
    finally:
        torch.use_deterministic_algorithms(False)
    assert sum(int(mask.sum()) for mask in masks) == 30_000 + 2_000 + 81 - 20_000


def test_order_is_the_logical_one_whatever_the_strides() -> None:
    masks = keep_masks([torch.ones(2, 3).t().contiguous().t()], 4)
    assert masks[0].tolist() == [[False, False, False], [False, True, True]]


def test_masks_take_the_memory_format() -> None:
    scores = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    assert keep_masks([scores], 100)[0].stride() == scores.stride()
    assert random_keep_masks([scores], 100)[0].stride() == scores.stride()


def test_dead_entries_are_false_and_do_not_count() -> None:
    scores = [torch.tensor([0.1, 5.0, 0.2, 3.0, NAN])]
    alive = [torch.tensor([False, True, True, True, False])]
    assert keep_masks(scores, 1, alive=alive)[0].tolist() == [False, True, False, True, False]


def test_dtypes_are_compared_without_rounding() -> None:
    scores = [
        torch.tensor([1 + 2**-23]),
        torch.tensor([1 + 2**-40], dtype=torch.float64),
        torch.tensor([1.0], dtype=torch.bfloat16),
        torch.tensor([1 - 2**-11], dtype=torch.float16),
    ]
    kept = [[mask.item() for mask in keep_masks(scores, count)] for count in (1, 2, 3)]
    assert kept == [[True, True, True, False], [True, True, False, False], [True, False, False, False]]


def test_complex_entries_are_ranked_by_modulus() -> None:
    assert keep_masks([torch.tensor([3 + 4j, 4.9 + 0j, 0 - 6j])], 1)[0].tolist() == [True, False, True]
    assert keep_masks([torch.tensor([3e38 + 3e38j, 2.5e38 + 2.5e38j])], 1)[0].tolist() == [True, False]


@pytest.mark.parametrize("number", [complex(INF, NAN), complex(NAN, INF), complex(NAN, 0)])
def test_complex_numbers_with_a_nan_part_cannot_be_ranked(number: complex) -> None:
    with pytest.raises(ValueError, match="tensor 0: 1 of 2 entries are NaN"):
        keep_masks([torch.tensor([1 + 0j, number])], 1)


def test_infinite_entries_are_the_largest() -> None:
    scores = [torch.tensor([INF, 1.0, -INF, 2.0])]
    assert keep_masks(scores, 2)[0].tolist() == [True, False, True, False]
    assert keep_masks(scores, 3)[0].tolist() == [False, False, True, False]


def test_denormals_differ_from_zero() -> None:
    assert keep_masks([torch.tensor([2.8e-45, -1.4e-45, 0.0])], 2)[0].tolist() == [True, False, False]


def test_nothing_and_everything() -> None:
    scores = [torch.tensor([1.0, 0.0]), torch.empty(0, 3), torch.tensor(0.0)]
    assert [mask.tolist() for mask in keep_masks(scores, 0)] == [[True, True], [], True]
    assert [mask.tolist() for mask in keep_masks(scores, 3)] == [[False, False], [], False]
    assert [mask.tolist() for mask in random_keep_masks(scores, 0)] == [[True, True], [], True]
    assert [mask.tolist() for mask in random_keep_masks(scores, 3)] == [[False, False], [], False]
    assert keep_masks([], 0) == random_keep_masks([], 0) == []


def test_parameters_stay_as_they_are() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    mask = keep_masks([parameter], 1)[0]
    assert mask.tolist() == [False, True]
    assert type(mask) is Tensor
    assert not mask.requires_grad
    assert parameter.tolist() == [1.0, -2.0]
    assert parameter.grad is None


# Refusals


def test_nan_is_refused_by_name_and_number() -> None:
    scores = [torch.tensor([1.0, INF, -INF]), torch.tensor([[NAN, 1.0], [NAN, NAN]])]
    alive = [None, torch.tensor([[True, True], [True, False]])]
    with pytest.raises(ValueError, match=r"fc\.weight: 2 of 4 entries are NaN"):
        keep_masks(scores, 0, alive=alive, names=["conv.weight", "fc.weight"])
    with pytest.raises(ValueError, match="tensor 1: 3 of 4 entries are NaN"):
        keep_masks(scores, 1)


@pytest.mark.parametrize("count", [-1, 4])
@pytest.mark.parametrize("select", [keep_masks, random_keep_masks])
def test_impossible_counts_are_refused_with_both_numbers(select: Callable[..., object], count: int) -> None:
    alive = [torch.tensor([True, False, True]), None]
    with pytest.raises(ValueError, match=f"cannot drop {count} entries.* the 3 that are left"):
        select([torch.ones(3), torch.ones(1)], count, alive=alive)


@pytest.mark.parametrize("select", [keep_masks, random_keep_masks])
def test_masks_that_do_not_fit_are_refused(select: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match="1 masks for 2 tensors"):
        select([torch.ones(3), torch.ones(1)], 1, alive=[None])
    with pytest.raises(ValueError, match=r"alive\[0\] has shape \(2,\); its tensor has shape \(3,\)"):
        select([torch.ones(3)], 1, alive=[torch.ones(2, dtype=torch.bool)])


# Random choice


def test_random_masks_drop_exactly_the_count_among_the_living() -> None:
    like = [torch.empty(300, 50), torch.empty(7), torch.empty(2, 0)]
    first = torch.rand(300, 50) < 0.3
    alive = [first, None, None]
    living = int(first.sum()) + 7
    for count in (1, living // 2, living - 1):
        masks = random_keep_masks(like, count, alive=alive)
        assert [mask.shape for mask in masks] == [tensor.shape for tensor in like]
        assert sum(int(mask.sum()) for mask in masks) == living - count
        assert not masks[0][~first].any()


def test_every_subset_is_equally_likely() -> None:
    draws = 4000
    alive = [torch.tensor([True, True, False]), None]
    like = [torch.empty(3), torch.empty(3)]
    drawn = Counter(tuple(torch.cat(random_keep_masks(like, 2, alive=alive)).tolist()) for _ in range(draws))
    assert len(drawn) == 10  # of 5 living entries, 2
    assert max(abs(number - draws / 10) for number in drawn.values()) < 5 * (draws * 0.1 * 0.9) ** 0.5


def test_every_entry_is_equally_likely_when_bytes_are_shared() -> None:
    draws, size = 400, 2000
    kept = sum(random_keep_masks([torch.empty(size)], size // 2)[0].double() for _ in range(draws))
    deviation = (kept - draws / 2) / (draws / 4) ** 0.5
    assert deviation.abs().max() < 5
    assert abs(float(deviation.square().mean()) - 1) < 0.2


def test_entries_that_share_a_byte_are_not_dropped_in_order() -> None:
    draws, size = 65, 100_000
    kept = sum(int(random_keep_masks([torch.empty(size)], size // 2)[0][: size // 2].sum()) for _ in range(draws))
    assert abs(kept - draws * size / 4) < 5 * (draws * size / 16) ** 0.5


def test_random_masks_follow_the_seed() -> None:
    like = [torch.empty(40, 50)]
    torch.manual_seed(3)
    first = random_keep_masks(like, 1000)[0]
    second = random_keep_masks(like, 1000)[0]
    torch.manual_seed(3)
    assert torch.equal(random_keep_masks(like, 1000)[0], first)
    assert not torch.equal(first, second)


def test_a_generator_leaves_the_global_one_alone() -> None:
    like = [torch.empty(40, 50)]
    state = torch.get_rng_state()
    drawn = [random_keep_masks(like, 9, generator=torch.Generator().manual_seed(5))[0] for _ in range(2)]
    assert torch.equal(*drawn)
    assert torch.equal(torch.get_rng_state(), state)


def test_random_masks_as_on_accelerators(request: pytest.FixtureRequest) -> None:
    like = [torch.empty(40, 50), torch.empty(7), torch.empty(())]
    alive = [torch.rand(40, 50) < 0.5, None, None]
    masks = [random_keep_masks(like, 900, alive=alive, generator=torch.Generator().manual_seed(1))]
    request.getfixturevalue("_no_arrays")
    masks.append(random_keep_masks(like, 900, alive=alive, generator=torch.Generator().manual_seed(1)))
    assert all(torch.equal(*pair) for pair in zip(*masks, strict=True))
    assert sum(int(mask.sum()) for mask in masks[1]) == int(alive[0].sum()) + 8 - 900


def test_random_masks_do_not_depend_on_the_memory_format() -> None:
    like = torch.empty(4, 3, 5, 5)
    seeds = [torch.Generator().manual_seed(5) for _ in range(2)]
    plain_mask = random_keep_masks([like], 100, generator=seeds[0])[0]
    other = random_keep_masks([like.contiguous(memory_format=torch.channels_last)], 100, generator=seeds[1])[0]
    assert torch.equal(plain_mask, other)
