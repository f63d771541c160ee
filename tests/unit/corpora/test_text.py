import pytest

from ddp_tokens.corpora.text import BEGIN, FINAL, as_text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("<s> has the dog not eaten the bone ?", "Has the dog not eaten the bone?"),
        ("<s> the dog barked .", "The dog barked."),
        ("stop !", "Stop!"),
        ("yes , I do .", "Yes, I do."),  # a capital inside stays
        ("I am <pad> here <s> now", "I am here now"),
        ("? the the . dog", "? the the. dog"),  # what an untrained model writes can be shown too
        ("<s>", ""),
        ("", ""),
    ],
)
def test_words_are_written_as_a_person_writes_them(words, text):
    assert as_text(words.split()) == text


@pytest.mark.parametrize("mark", FINAL)
def test_a_final_mark_follows_without_a_space(mark):
    assert as_text([BEGIN, "they", "sleep", mark]) == f"They sleep{mark}"
