"""The GPUs of a server, and what kvwatch itself costs and misses."""

from __future__ import annotations

from kvwatch.mixin.dashboards.colours import ACT, BLUE, GOOD, LOOK, ORANGE, SKY
from kvwatch.mixin.dashboards.common import LIMITS, NO_KVWATCH, threshold_text
from kvwatch.mixin.dashboards.elements import (
    Column,
    Panel,
    PanelRow,
    ThresholdStep,
    graph,
    ratio_panel,
    stacked,
    stat,
    table,
)
from kvwatch.mixin.dashboards.queries import RANGE, RATE, SERVER, QueryScope, highest, total
from kvwatch.settings import Settings

_NO_GPU = "No GPU data: set gpu_url to a DCGM exporter, or install kvwatch[nvml]"
_DUTY_CYCLE = float(Settings.model_fields["duty_cycle"].default)


def gpu(scope: QueryScope) -> PanelRow:
    def each_gpu(name: str, title: str, text: str, steps: tuple[ThresholdStep, ...] = ()) -> Panel:
        return ratio_panel(
            title,
            {"{{target}} GPU {{gpu}}": highest(scope(name), "instance, target, gpu")},
            text,
            size=(6, 7),
            steps=steps,
            absent=_NO_GPU,
        )

    used, free = total(scope("gpu_memory_used_bytes")), total(scope("gpu_memory_free_bytes"))
    return PanelRow(
        "What do the GPUs do?",
        (
            each_gpu(
                "gpu_sm_active_ratio",
                "SMs active",
                "Mean share of the GPU's processors (SMs) that had work (DCGM). Below"
                f" {threshold_text('gpu_underused.active')} under load with a nearly empty cache, the server can"
                " take more requests.",
                (ThresholdStep(0, LOOK), ThresholdStep(LIMITS["gpu_underused.active"], GOOD)),
            ),
            each_gpu(
                "gpu_dram_active_ratio",
                "Memory bandwidth active",
                "Share of time in which the GPU's memory transferred data (DCGM). Memory bandwidth is the usual"
                " limit of decoding.",
            ),
            each_gpu(
                "gpu_utilization_ratio",
                "GPU utilization",
                "Share of time in which any kernel ran. A low value shows that the GPU idles. 100 % shows"
                " neither that the GPU is well used nor that the engine makes progress.",
            ),
            graph(
                "GPU memory",
                {"used": used, "total": f"{used} + {free}"},
                "vLLM allocates its share at the start, so the line is flat even if the cache fills up."
                " --gpu-memory-utilization turns free memory into KV cache.",
                unit="bytes",
                size=(6, 7),
                colours={"used": BLUE, "total": ORANGE},
                absent=_NO_GPU,
            ),
        ),
        collapsed=True,
    )


def cost(scope: QueryScope) -> PanelRow:
    interval = scope("scrape_interval_seconds")
    return PanelRow(
        "What does kvwatch cost, and what does it miss?",
        (
            graph(
                "Share of vLLM's time",
                {"{{target}}": highest(f"{scope('scrape_duration_seconds')} / {interval}", "target")},
                "Duration of a scrape / scrape interval. kvwatch lengthens its interval to"
                f" keep this below its duty cycle (default {_DUTY_CYCLE:.0%}).",
                unit="percentunit",
                size=(6, 7),
                steps=(ThresholdStep(_DUTY_CYCLE, LOOK),),
            ),
            graph(
                "Scrape interval and age of the data",
                {"interval": highest(interval), "age of the data": highest(scope("data_age_seconds"))},
                "Current scrape interval, and age of the newest data. If the age grows while scrapes succeed,"
                " kvwatch has stopped polling.",
                unit="s",
                size=(6, 7),
                colours={"interval": SKY, "age of the data": ORANGE},
            ),
            stacked(
                "Failed scrapes",
                {"{{outcome}}": total(scope.rate("scrapes_total", 'outcome!="ok"'), "outcome")},
                "Failed scrapes of vLLM per second, by kind of failure. kvwatch has no data for that time.",
                unit="cps",
                size=(6, 7),
            ),
            graph(
                "CPU of kvwatch",
                {
                    "{{instance}}": total(
                        f"rate({scope.process('process_cpu_seconds_total')}[{RATE}])", "instance"
                    )
                },
                "CPU of each kvwatch, in cores. One engine at one scrape per second takes about 1 % of a core.",
                unit="percentunit",
                size=(6, 7),
                absent=NO_KVWATCH,
            ),
            graph(
                "Memory of kvwatch",
                {"{{instance}}": total(scope.process("process_resident_memory_bytes"), "instance")},
                "Resident memory of each kvwatch. It should stay flat.",
                unit="bytes",
                size=(6, 7),
                absent=NO_KVWATCH,
            ),
            graph(
                "Scrape size",
                {"{{target}}": highest(scope("scrape_body_bytes"), "target")},
                "Bytes of the last scraped page. It is small if vLLM can return selected metrics only.",
                unit="bytes",
                size=(6, 7),
            ),
            stat(
                "Internal errors",
                {"in the range": total(scope.increase("poll_errors_total", window=RANGE))},
                "Internal errors of kvwatch in the shown time range. Report each as a bug.",
                size=(3, 7),
                steps=(ThresholdStep(1, ACT),),
                decimals=0,
            ),
            stat(
                "Core signals missing",
                {"missing": total(scope("core_signal_missing"))},
                "Missing signals that the regime requires, over all engines. If it is not 0, this vLLM has"
                " renamed them, or is too old.",
                size=(3, 7),
                steps=(ThresholdStep(1, ACT),),
                decimals=0,
            ),
            table(
                "Unknown vLLM metrics",
                {"families": highest(scope("unknown_families"), SERVER)},
                "vLLM metrics that this kvwatch does not know, perhaps renamed ones. /api/v1/state lists their"
                " names.",
                size=(6, 7),
                columns=(Column("target", "server"), Column("families", width=90)),
                sort="families",
            ),
        ),
        collapsed=True,
    )
