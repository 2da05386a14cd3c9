"""Workers that measure in this process."""


class Inline:
    """Workers without processes."""

    def each(self, measure, arguments):
        return [measure(*each) for each in arguments]
