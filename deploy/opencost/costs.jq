# Turns a report of ration (ration report --json) into OpenCost's CustomCostResponse, with the names of its fields:
#
#   ration report --json --by job --since yesterday --until today |
#     jq --arg zone "$(hostname)" --arg currency USD --argjson gib_hour 0.01 --argjson gpu_hour 0.50 -f costs.jq
#
# Each line of the report becomes two costs, of memory and of the device's time. With --arg memory reserved the
# limits are charged, and not what was held.

def hours: . / 3600;
def text: . // "";
def seconds: sub("\\.[0-9]+Z$"; "Z") | fromdateiso8601;
def rounded: . * 1e6 | round / 1e6;

($ARGS.named.memory // "held") as $memory
| if $memory != "held" and $memory != "reserved" then error("memory is held or reserved") else . end
| . as $report
| {
    metadata: {by, watched_seconds: (.watched_seconds | tostring)},
    cost_source: "gpu",
    domain: "ration",
    version: "v1",
    currency: $currency,
    start: .from,
    end: .to,
    errors: [
      ((.to | seconds) - (.from | seconds)) as $span
      | select(.watched_seconds < 0.999 * $span)
      | "an agent watched \(.watched_seconds | floor) of \($span) seconds; what was used in the rest is not known"
    ],
    costs: [
      .lines[]
      | . as $line
      | {
          "gpu-memory": {quantity: (.[$memory + "_byte_seconds"] / 1073741824 | hours), unit: "GiB-Hours", price: $gib_hour, what: "GPU memory \($memory)"},
          "gpu-time": {quantity: (.gpu_seconds | hours), unit: "Hours", price: $gpu_hour, what: "GPU time"}
        }
      | to_entries[]
      | select(.value.quantity > 0)
      | .key as $type
      | .value as $use
      | ($use.quantity * $use.price | rounded) as $cost
      | {
          zone: $zone,
          account_name: ($line.project // $line.user | text),
          charge_category: "usage",
          description: $use.what,
          resource_name: ($line.job // $line.gpu // $line.user // $line.project | text),
          resource_type: $type,
          id: ([$zone, $report.from, $report.to, $line.user, $line.project, $line.job, $line.gpu, $type] | map(text | @uri) | join("/")),
          provider_id: ($line.gpu | text),
          billed_cost: $cost,
          list_cost: $cost,
          list_unit_price: $use.price,
          usage_quantity: ($use.quantity | rounded),
          usage_unit: $use.unit,
          labels: ($line | {user, project, job, gpu, sampled: (if $type == "gpu-time" and .sampled_gpu_seconds > 0 then "true" else null end)}
            | with_entries(select(.value != null)))
        }
    ]
  }
