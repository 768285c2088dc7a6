"""What a notebook shows of results."""

import dataclasses
from html.parser import HTMLParser
from pathlib import Path

import torch
from torch import nn

import sora
from sora._html import html_table
from tests.training.test_fit import FAST, tensors


class Cells(HTMLParser):
    """The text of each element; the tags must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts, self.open = list[str](), list[str]()
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag in ("table", "caption", "tr", "th", "td", "b", "p")
        assert "color" not in str(attrs).replace("border-bottom:1px solid rgba", "")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_text_is_escaped() -> None:
    hostile = "<script>alert('&')</script>"
    text = html_table(hostile, [hostile, "b"], [[hostile, 1]], [hostile])
    assert "<script" not in text
    assert Cells(text).texts == [hostile, hostile, "b", hostile, "1", hostile]


def test_fit_evaluate_and_compare(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    result = sora.fit(model, (tensors(), tensors(30)), out=tmp_path / "a", quiet=True, **FAST)
    x, y = tensors(30)
    found = sora.evaluate(model, (x / 255, y), sora.Linf("0.1"), "clean,fgsm,pgd10")
    for each in (result, found):
        texts = Cells(each._repr_html_()).texts
        assert f"linf eps {each.threat.given}: {each.verdict}" in texts[0]
        for name, share in each.accuracy.items():
            assert texts[texts.index(name) + 1] == f"{100 * share:.1f} %"
        assert "worst case" in texts
        assert each.remark == "worst case: of clean, fgsm, pgd10; an upper bound, AutoAttack was not run"
        assert each.remark in texts
        assert [f"warning: {text}" for text in each.warnings] == texts[len(texts) - len(each.warnings) :]
    assert "no alarm" in result._repr_html_()
    summary = result.summary | {"method": "<b>", "co": result.summary["co"] | {"events": [{"step": 7}]}}
    named = dataclasses.replace(result, summary=summary)._repr_html_()
    assert "&lt;b&gt; on" in named
    assert "first alarm at step 7" in named
    comparison = sora.compare(tmp_path)
    texts = Cells(comparison._repr_html_()).texts
    assert f"{100 * result.accuracy['clean']:.1f}" in texts
    assert result.verdict in texts
    assert "n = 30 test images" in texts[-1]


def test_a_task_without_accuracies() -> None:
    def squared(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).square().mean(1)

    x, model = torch.rand(8, 4), nn.Linear(4, 2)
    found = sora.evaluate(model, (x, torch.rand(8, 2)), sora.Linf(0.1), "clean,fgsm", loss=squared)
    texts = Cells(found._repr_html_()).texts
    assert texts[:3] == ["linf eps 0.1: no verdict", "attack", "mean loss"]
    assert texts[texts.index("fgsm") + 1] == f"{found.losses['fgsm']:.4g}"
