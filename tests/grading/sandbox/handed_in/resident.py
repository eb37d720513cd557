# ruff: noqa: F821
# mypy: ignore-errors
import ctypes
import sys


class Resident(FlatParameter):
    """Blocks that are never freed: the parameters look at a place of their own for ever. `full` comes and goes."""

    def __init__(self, params, group, dtype=None):
        super().__init__(params, group, dtype)
        self.places = room(self.params, len(UNITS))
        UNITS.append(self)
        self.look()

    def look(self):
        for p, place in zip(self.params, self.places):
            p.data = place

    def wait(self):
        if not self.whole:
            super().wait()
            for place, view in zip(self.places, self.views):
                ctypes.memmove(place.data_ptr(), view.data_ptr(), view.nbytes)
            self.look()

    def free(self):
        super().free()
        if hasattr(self, "places"):
            self.look()


UNITS = []


def held_by_a_caller(kind, name):
    frame = sys._getframe(1)
    while frame is not None:
        if isinstance(frame.f_locals.get(name), kind) and len(frame.f_locals[name]):
            return frame.f_locals[name]
        frame = frame.f_back
    return None


def cut(params, numbers):
    """Views of the first numbers, shaped as the parameters."""
    sizes = [p.numel() for p in params]
    return [part.view(p.shape) for part, p in zip(numbers[: sum(sizes)].split(sizes), params)]
