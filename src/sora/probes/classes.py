"""Images per class of data sets (Figure 8)."""

from collections.abc import Mapping

from sora.data import Dataset
from sora.figures import Axis, Bars, Figure, Panel
from sora.probes._base import Probe, Result, register

NAMED = 20  # classes whose names fit under the bars
LONGEST = 24  # letters of a name


@register("classes", "images per class of the data sets at hand", reads="data", figures=(8,))
class Classes(Probe[Dataset]):
    """The number of training images of every class."""

    def measure(self, subject: Dataset) -> Result:
        """Count the training images of every class."""
        counts = subject.train.labels.bincount(minlength=subject.num_classes).tolist()
        return {"classes": list(subject.classes), "counts": counts}

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw a panel per data set, the classes by name if there are few, else by size."""
        panels = []
        for name, result in results.items():
            counts, few = result["counts"], len(result["counts"]) <= NAMED
            names = [text if len(text) <= LONGEST else f"{text[:LONGEST]}..." for text in result["classes"]]
            labels = names if few else list(map(str, range(len(counts))))
            x = Axis() if few else Axis("classes, largest first", names={0.0: "0"})
            bars = Bars(labels, counts if few else sorted(counts, reverse=True))
            title = f"{name}: {self.sentence(result)}"
            panels.append(Panel([bars], title, x, Axis("training images", low=0)))
        return Figure(panels, columns=3)

    def sentence(self, result: Result) -> str:
        """State how large the classes are."""
        counts = result["counts"]
        return f"{len(counts)} classes of {min(counts):,} to {max(counts):,} training images"
