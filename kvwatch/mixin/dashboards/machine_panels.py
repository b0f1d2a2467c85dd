"""The GPUs of a server, and what watching it costs."""

from __future__ import annotations

from kvwatch.mixin.dashboards.colours import ACT, BLUE, GOOD, LOOK, ORANGE, SKY
from kvwatch.mixin.dashboards.common import about, step
from kvwatch.mixin.dashboards.elements import Column, Panel, PanelKind, PanelRow, Query, ThresholdStep
from kvwatch.mixin.dashboards.queries import SERVER, QueryScope, highest, total
from kvwatch.settings import Settings

_NO_GPU = "No GPU data: give kvwatch a DCGM exporter, or install kvwatch[nvml]"
_DUTY = float(Settings.model_fields["duty_cycle"].default)


def gpu(scope: QueryScope) -> PanelRow:
    def each(
        name: str, title: str, text: str, unit: str = "percentunit", steps: tuple[ThresholdStep, ...] = ()
    ) -> Panel:
        return Panel(
            title,
            PanelKind.LINES,
            unit,
            (Query(highest(scope(name), "instance, target, gpu"), "{{target}} GPU {{gpu}}"),),
            text,
            width=6,
            steps=steps,
            high=1 if unit == "percentunit" else None,
            absent=_NO_GPU,
        )

    used, free = scope("gpu_memory_used_bytes"), scope("gpu_memory_free_bytes")
    return PanelRow(
        "What do the GPUs do?",
        (
            each(
                "gpu_sm_active_ratio",
                "Processors active",
                "Share of the GPU's processors that had work, on average (DCGM). Under traffic, less than"
                f" {about('gpu_underused.active')} with an empty cache means that the server could take more.",
                steps=(ThresholdStep(0, LOOK), ThresholdStep(step("gpu_underused.active").value, GOOD)),
            ),
            each(
                "gpu_dram_active_ratio",
                "Memory active",
                "Share of time in which the GPU's memory moved data (DCGM). Decoding is bound by it: near its"
                " top more requests at once cost little.",
            ),
            each(
                "gpu_utilization_ratio",
                "Anything at all",
                "Share of time in which anything ran, however little. 100 % proves nothing, not even that the"
                " engine is alive; a low value does.",
            ),
            Panel(
                "GPU memory",
                PanelKind.LINES,
                "bytes",
                (Query(total(used), "used"), Query(f"{total(used)} + {total(free)}", "there is")),
                "vLLM takes its share at the start and keeps it, so this line is flat whatever the cache"
                " holds. Room that stays free can become KV cache: --gpu-memory-utilization.",
                width=6,
                colours={"used": BLUE, "there is": ORANGE},
                absent=_NO_GPU,
            ),
        ),
        collapsed=True,
    )


def cost(scope: QueryScope) -> PanelRow:
    failures = scope.rate("scrapes_total", 'outcome!="ok"')
    return PanelRow(
        "What does kvwatch itself cost, and what does it miss?",
        (
            Panel(
                "Share of vLLM's time",
                PanelKind.LINES,
                "percentunit",
                (
                    Query(
                        highest(
                            f"{scope('scrape_duration_seconds')} / {scope('scrape_interval_seconds')}",
                            "target",
                        ),
                        "{{target}}",
                    ),
                ),
                "Time that vLLM takes to answer kvwatch / interval between scrapes. kvwatch stretches its"
                f" interval so that this stays under its duty cycle ({_DUTY:g} by default).",
                width=6,
                steps=(ThresholdStep(_DUTY, LOOK),),
            ),
            Panel(
                "Interval and age",
                PanelKind.LINES,
                "s",
                (
                    Query(highest(scope("scrape_interval_seconds")), "interval"),
                    Query(highest(scope("data_age_seconds")), "age of the data"),
                ),
                "How often kvwatch asks at present, and how old what it shows is. An age that grows while"
                " scrapes succeed is a kvwatch that stands still.",
                width=6,
                colours={"interval": SKY, "age of the data": ORANGE},
            ),
            Panel(
                "Failed scrapes",
                PanelKind.STACK,
                "cps",
                (Query(total(failures, "outcome"), "{{outcome}}"),),
                "Scrapes of vLLM per second that gave nothing, by kind of failure. What happened meanwhile is"
                " not seen.",
                width=6,
            ),
            Panel(
                "kvwatch's processor and memory",
                PanelKind.LINES,
                "percentunit",
                (
                    Query(
                        total(
                            f"rate({scope.own('process_cpu_seconds_total')}[$__rate_interval])", "instance"
                        ),
                        "{{instance}}",
                    ),
                ),
                "Processor time of each kvwatch, in cores. One engine at one scrape a second takes about a"
                " hundredth.",
                width=6,
                absent="No kvwatch is scraped",
            ),
            Panel(
                "kvwatch's memory",
                PanelKind.LINES,
                "bytes",
                (Query(total(scope.own("process_resident_memory_bytes"), "instance"), "{{instance}}"),),
                "Resident memory of each kvwatch. It should be flat.",
                width=6,
                absent="No kvwatch is scraped",
            ),
            Panel(
                "Size of an answer",
                PanelKind.LINES,
                "bytes",
                (Query(highest(scope("scrape_body_bytes"), "target"), "{{target}}"),),
                "Bytes of vLLM's newest answer. Small where it can be asked for less than the whole page.",
                width=6,
            ),
            Panel(
                "Errors of its own",
                PanelKind.STAT,
                "none",
                (Query(total(scope.increase("poll_errors_total", window="$__range")), "in the range"),),
                "Errors of kvwatch itself over the shown time. Each is a bug to report.",
                width=3,
                steps=(ThresholdStep(1, ACT),),
                decimals=0,
            ),
            Panel(
                "Core signals missing",
                PanelKind.STAT,
                "none",
                (Query(total(scope("core_signal_missing")), "missing"),),
                "Signals without which no regime can be told, over all engines. Not 0: this vLLM has renamed"
                " them, or is too old.",
                width=3,
                steps=(ThresholdStep(1, ACT),),
                decimals=0,
            ),
            Panel(
                "What kvwatch does not know",
                PanelKind.TABLE,
                "none",
                (Query(highest(scope("unknown_families"), SERVER), "families"),),
                "Families of vLLM's metrics of which this kvwatch has never heard: tomorrow's renames. It"
                " names them under /api/v1/state.",
                width=6,
                columns=(Column("target", "server"), Column("families", width=90)),
                sort="families",
            ),
        ),
        collapsed=True,
    )
