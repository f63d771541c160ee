"""What an experiment's rows are: one section per kind of corpus."""

from typing import Annotated, Literal, Self

from pydantic import Field, Tag, model_validator

from ddp_tokens.setting_types import NO_BOOLEAN, NonNegative, NonNegativeReal, Positive, Section, kind_of


class GeneratedCorpus(Section):
    """Sequences over a small alphabet, made from the seed. The label at each position is
    (token + position) mod classes, so every position is supervised and the rule can be learned."""

    kind: Literal["generated"] = Field("generated", description="sequences with a label at every position")
    train: Positive = Field(1024, description="training sequences; half of them short, half long")
    validation: Positive = Field(128, description="validation sequences, lengths uniform over the whole range")
    test: Positive = Field(256, description="test sequences, lengths uniform over the whole range")
    vocabulary: Positive = Field(4, description="number of symbols")
    classes: Positive = Field(4, description="number of label classes")
    min_length: Positive = Field(16, description="shortest sequence, in tokens")
    short_max_length: Positive = Field(64, description="longest of the short half, in tokens")
    max_length: Positive = Field(128, description="longest sequence, in tokens")

    @model_validator(mode="after")
    def _lengths_in_order(self) -> Self:
        if not self.min_length <= self.short_max_length < self.max_length:
            raise ValueError(
                "min_length <= short_max_length < max_length is needed, "
                f"not {self.min_length}, {self.short_max_length}, {self.max_length}"
            )
        return self


class VerbGrammar(Section):
    """English sentences made from the seed: tense, aspect, agreement, negation and questions of regular and common
    irregular verbs. Tokens are words, the label at each position is the next word, so that a row of n tokens has n - 1
    supervised units. No sentence stands there twice."""

    kind: Literal["verb_grammar"] = Field("verb_grammar", description="sentences of English verb grammar")
    train: Positive = Field(3200, description="training sentences")
    validation: Positive = Field(200, description="validation sentences")
    test: Positive = Field(400, description="test sentences")


class OwnRows(Section):
    """Your own data: rows with the fields id, split, tokens and, unless they follow from these, labels; where they need
    it also weights (one per token, 0 or more, by which its loss is multiplied), document (the name of what the row is a
    part of), starts (of a packed row, the positions at which its sequences start, from 0 on) and prompt (how many
    tokens at the start, of a packed row of each sequence, are a prompt, whose labels do not count). `docs/data.md` has
    an example of each."""

    kind: Literal["own"] = Field("own", description="rows of files; may be left out where `path` is given")
    path: str = Field(
        description="a JSONL file, one JSON object per line; a .parquet file; a folder that `save_to_disk` of the "
        "package datasets wrote; or a folder of .jsonl and .parquet files, read in the order of their names (Parquet "
        "and datasets need `make data`); relative paths start at the current folder"
    )
    classes: Positive | None = Field(
        None, description="number of label classes; when absent, the largest label of the file plus one"
    )
    labels: Literal["given", "next_token"] = Field(
        "given",
        description="next_token: rows have no field `labels`; each token is labelled with the one that comes next, the "
        "last (of a packed row, of each sequence) with none, as the workload causal_lm needs it; with `prompt` n, the "
        "labels of the first n - 1 tokens do not count, and the n-th predicts the first token after the prompt. given: "
        "with `prompt` n, the labels of the first n tokens do not count",
    )

    @model_validator(mode="after")
    def _classes_of_given_labels(self) -> Self:
        if self.labels == "next_token" and self.classes is not None:
            raise ValueError("classes goes with labels that are given; with labels: next_token leave it out")
        return self


class Images(Section):
    """Square images made from the seed: each class has a pattern of its own, under noise. A row holds an
    image's index and label only, from which it is made when it is needed; an image is one supervised unit."""

    kind: Literal["images"] = Field("images", description="images with a label each")
    train: Positive = Field(50_000, description="training images")
    validation: NonNegative = Field(1_000, description="validation images")
    test: Positive = Field(10_000, description="test images")
    classes: Annotated[int, Field(ge=2), NO_BOOLEAN] = Field(10, description="number of label classes")
    channels: Positive = Field(3, description="colours of a pixel")
    size: Annotated[int, Field(ge=4), NO_BOOLEAN] = Field(32, description="height and width, in pixels")
    noise: NonNegativeReal = Field(
        1.0, description="standard deviation of what is added to each pixel; a class's pattern has 1"
    )


class OwnImages(Section):
    """Your own images: a folder with one folder of image files per class, or a file with the arrays `images` and
    `labels`. Which image is in which split is drawn from the seed; an image is one supervised unit."""

    kind: Literal["own_images"] = Field("own_images", description="images of a folder or a file")
    path: str = Field(
        description="a folder CLASS/IMAGE of files that Pillow reads, such as PNG or JPEG, or a .npz or .safetensors "
        "file with `images`, (number, height, width), (number, channels, height, width) or (number, height, width, "
        "channels), 1 or 3 channels, of type uint8 or float32 from 0 to 1, and `labels`, whole numbers from 0; "
        "relative paths start at the current folder"
    )
    train: Positive = Field(description="training images")
    validation: NonNegative = Field(0, description="validation images")
    test: Positive = Field(description="test images; the splits together may be fewer than there are")
    channels: Literal[1, 3] | None = Field(
        None, description="of a folder: colours that a pixel is read as, 1 for grey; when absent, 3"
    )
    size: Annotated[int, Field(ge=4), NO_BOOLEAN] | None = Field(
        None,
        description="of a folder: height and width that images are resized to; when absent, all must have one size",
    )


Corpus = Annotated[
    Annotated[GeneratedCorpus, Tag("generated")]
    | Annotated[VerbGrammar, Tag("verb_grammar")]
    | Annotated[OwnRows, Tag("own")]
    | Annotated[Images, Tag("images")]
    | Annotated[OwnImages, Tag("own_images")],
    kind_of(lambda value: "own" if "path" in value else "generated"),
]
