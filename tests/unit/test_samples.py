"""What a model writes is shown as text, from the first tokens of the test rows."""

import torch

from ddp_tokens.samples import NUMBER, write_samples
from tests.helpers import next_token_row

ROWS = [
    next_token_row("t", 5, 1, split="train"),
    *(next_token_row(f"{index}", index % 4, 1, split="test") for index in range(54)),
    next_token_row("v", 4, 1, split="validation"),
]
SHAPE = {"vocabulary": 6, "classes": 6, "positions": 4}
WORDS = ["<s>", "dogs", "sleep", "they", "?", "."]


class Continues:
    """Writes the first token, then 1, 2 and a number from the generator; notes what it was asked for."""

    def __init__(self):
        self.asked = []

    def sample(self, model, first_token, generator, longest, stop):
        drawn = int(torch.randint(4, 6, (1,), generator=generator))
        self.asked.append((model, first_token, longest, set(stop)))
        return [first_token, 1, 2, drawn]


def test_there_is_a_text_for_each_of_the_first_fifty_test_rows():
    writer, model = Continues(), torch.nn.Identity()
    texts = write_samples(writer, model, ROWS, {"shape": SHAPE, "vocabulary": WORDS}, seed=3)
    assert NUMBER == 50
    assert writer.asked == [(model, index % 4, 4, {4, 5}) for index in range(50)]
    assert len(texts) == 50
    begun = [text[:-1] for text in texts]
    assert begun == ["Dogs sleep", "Dogs dogs sleep", "Sleep dogs sleep", "They dogs sleep"] * 12 + [
        "Dogs sleep",
        "Dogs dogs sleep",
    ]
    assert {text[-1] for text in texts} == {"?", "."}


def test_without_words_a_text_is_numbers_and_nothing_stops_it():
    writer = Continues()
    texts = write_samples(writer, torch.nn.Identity(), ROWS, {"shape": SHAPE}, seed=3)
    assert [text[:-1] for text in texts] == ["0 1 2 ", "1 1 2 ", "2 1 2 ", "3 1 2 "] * 12 + ["0 1 2 ", "1 1 2 "]
    assert all(stop == set() for *_, stop in writer.asked)


def test_the_seed_decides():
    lock = {"shape": SHAPE, "vocabulary": WORDS}
    first, again, other = (write_samples(Continues(), torch.nn.Identity(), ROWS, lock, seed) for seed in (3, 3, 4))
    assert first == again != other


def test_fewer_test_rows_give_fewer_texts():
    assert len(write_samples(Continues(), torch.nn.Identity(), ROWS[:3], {"shape": SHAPE}, seed=3)) == 2
