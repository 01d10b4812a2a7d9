r"""Real texts with two labelings, embedded by a sentence encoder.

    python -m lab.benchmarks.embed_texts events-2012 --source CrisisLexT26 --encoder FOLDER \
        --out runs/events-2012.npz

- "reviews": sentences on products, films and restaurants (UCI, Sentiment Labelled Sentences): which
  of these, and whether it is praise.
- "dialogs": turns of the Schema-Guided Dialogue data (its folder "train"): the domain, and what the
  turn does (asks, offers, confirms ...).
- "commands": what people say to an assistant at home (NLU Evaluation Data; Liu et al., 2019; its
  ten test sets): about alarms, the calendar or lists, and whether to set, query or remove one. Of
  all themes these three alone have all three requests.
- "events-2012", "events-2013", "events-held-out": messages on five, five and seven disasters
  (CrisisLexT26): which one, and what people told of it (damage, donations, sympathy ...), by paid
  readers. The seven are all others of which English words are in three messages of five.

Texts without a label, of two acts or of other kinds are left out, and of messages links and names.
The encoder is a folder in the form of `transformers`, whose last layer
is averaged over the tokens. Labels were looked at while rules were chosen, but for those of
"commands" and the held-out events.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch

# Texts that are embedded at once, and most tokens of a text.
BATCH, TOKENS = 64, 128
# A text and its two labels.
Text = tuple[str, str, str]

SITES = {"amazon_cells": "product", "imdb": "film", "yelp": "restaurant"}
DOMAINS = ("Restaurants", "Events", "Banks", "Media")
FILES = ("001", "005", "020", "040")
OF_SYSTEM = ("REQUEST", "CONFIRM", "OFFER", "NOTIFY_SUCCESS", "INFORM")
KINDS = (
    "Sympathy and support",
    "Affected individuals",
    "Infrastructure and utilities",
    "Donations and volunteering",
    "Caution and advice",
)
EVENTS = {
    "events-2012": (
        "2012_Colorado_wildfires",
        "2013_Boston_bombings",
        "2013_Alberta_floods",
        "2013_Glasgow_helicopter_crash",
        "2013_West_Texas_explosion",
    ),
    "events-2013": (
        "2013_Queensland_floods",
        "2013_Australia_bushfire",
        "2013_NY_train_crash",
        "2013_Singapore_haze",
        "2013_Typhoon_Yolanda",
    ),
    "events-held-out": (
        "2012_Philipinnes_floods",
        "2012_Typhoon_Pablo",
        "2013_Bohol_earthquake",
        "2013_Colorado_floods",
        "2013_LA_airport_shootings",
        "2013_Manila_floods",
        "2013_Savar_building_collapse",
    ),
}


def reviews(source: Path) -> Iterator[Text]:
    for site, what in SITES.items():
        for line in (source / f"{site}_labelled.txt").read_text(errors="replace").split("\n"):
            if "\t" in line:
                text, praise = line.rsplit("\t", 1)
                yield text.strip(), what, praise.strip()


def dialogs(source: Path) -> Iterator[Text]:
    for number in FILES:
        for dialog in json.loads((source / f"dialogues_{number}.json").read_text()):
            for turn in dialog["turns"]:
                acts = {action["act"] for frame in turn["frames"] for action in frame["actions"]}
                act = "INTENT" if "INFORM_INTENT" in acts else "".join(acts)
                said = act == "INTENT" or (turn["speaker"] == "SYSTEM" and act in OF_SYSTEM)
                if len(turn["frames"]) == 1 and said:
                    domain = turn["frames"][0]["service"].split("_")[0]
                    if domain in DOMAINS:
                        yield turn["utterance"], domain, act


def commands(source: Path) -> Iterator[Text]:
    requests = {"set": "set", "createoradd": "set", "query": "query", "remove": "remove"}
    for theme, (intent, request) in product(("alarm", "calendar", "lists"), requests.items()):
        for path in sorted(source.rglob(f"testset/csv/{theme}_{intent}.csv")):
            with path.open(errors="replace") as file:
                for row in csv.DictReader(file, delimiter=";"):
                    yield row["answer_from_anno"].strip(), theme, request


def messages(name: str) -> Callable[[Path], Iterator[Text]]:
    def read(source: Path) -> Iterator[Text]:
        for event in EVENTS[name]:
            with (source / event / f"{event}-tweets_labeled.csv").open() as file:
                for row in csv.DictReader(file, skipinitialspace=True):
                    about = {key.strip(): value for key, value in row.items()}
                    text = re.sub(r"https?://\S+|@\w+|^RT\b:?|…", " ", about["Tweet Text"])
                    if about["Information Type"] in KINDS:
                        yield " ".join(text.split()).strip(' :"'), event, about["Information Type"]

    return read


SETS = {"reviews": reviews, "dialogs": dialogs, "commands": commands} | {
    name: messages(name) for name in EVENTS
}


def embedded(texts: list[str], encoder: Path) -> np.ndarray:
    """``[N, D]``, of length one."""
    from transformers import AutoModel, AutoTokenizer

    tokens, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder)
    rows = []
    for start in range(0, len(texts), BATCH):
        how = {"padding": True, "truncation": True, "max_length": TOKENS, "return_tensors": "pt"}
        batch = tokens(texts[start : start + BATCH], **how)
        with torch.no_grad():
            last, there = model.eval()(**batch).last_hidden_state, batch["attention_mask"]
        rows.append(torch.einsum("bti,bt->bi", last, there.to(last)))
    return torch.nn.functional.normalize(torch.cat(rows), dim=1).numpy()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("name", choices=SETS)
    parser.add_argument("--source", type=Path, required=True, help="the folder of the data")
    parser.add_argument("--encoder", type=Path, required=True, help="the encoder's folder")
    parser.add_argument("--out", type=Path, required=True, help="a file ending in .npz")
    args = parser.parse_args(arguments)
    found = sorted({text: labels for text, *labels in SETS[args.name](args.source)}.items())
    texts, labels = zip(*found, strict=True)
    codes = [np.unique(column, return_inverse=True)[1] for column in np.array(labels).T]
    x = embedded(list(texts), args.encoder)
    np.savez_compressed(args.out, x=x, labels=np.stack(codes, 1), texts=np.array(texts))
    print(f"{len(x)} texts, {[code.max() + 1 for code in codes]} labels: {args.out}")


if __name__ == "__main__":
    main()
