"""Error of the memory estimate on published runs, compared with SimuMax and a rule of thumb.

python -m benchmarks.accuracy
"""

from benchmarks.published import Measurement, b200_runs


def main() -> None:
    """Print one line for each layout, and the mean and largest absolute error of each group."""
    runs = list(b200_runs())
    print(f"{'model':24} {'layout':30} {'measured GiB':>15} {'ours':>15} {'error':>15} {'SimuMax':>8} {'18 B rule':>9}")
    for run in runs:
        simumax, rule = (predicted / max(run.measured_gib) - 1 for predicted in (run.simumax_gib, run.rule_gib))
        print(
            f"{run.model:24} {run.layout:30} {_figures(run.measured_gib):>15} {_figures(run.ours_gib):>15} "
            f"{' '.join(f'{error:+.2%}' for error in run.stage_errors):>15} {simumax:+8.2%} {rule:+9.1%}"
        )
    for name, latent in (("dense", False), ("DeepSeek", True)):
        _summary(name, [run for run in runs if run.latent_attention is latent])


def _figures(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _summary(name: str, runs: list[Measurement]) -> None:
    columns = {
        "ours": [run.error for run in runs],
        "SimuMax": [run.simumax_gib / max(run.measured_gib) - 1 for run in runs],
        "18 B rule": [run.rule_gib / max(run.measured_gib) - 1 for run in runs],
    }
    for estimator, errors in columns.items():
        sizes = [abs(error) for error in errors]
        mean, largest = sum(sizes) / len(sizes), max(sizes)
        print(f"{name}, {len(runs)} layouts, worst stage: {estimator:9} mean {mean:.2%}, max {largest:.2%}")


if __name__ == "__main__":
    main()
