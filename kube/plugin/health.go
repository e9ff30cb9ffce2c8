package plugin

import (
	"time"

	"google.golang.org/grpc"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

// How often the kubelet gets the health of the GPUs if it does not change, and when it must treat the last report as
// outdated.
const (
	healthPeriod  = time.Minute
	healthTimeout = 3 * healthPeriod
)

// NodeWatchResources reports the health of all GPUs to the kubelet until either side ends the
// stream. The kubelet adds it to the status of the pods that use them.
func (p *Plugin) NodeWatchResources(_ *health.NodeWatchResourcesRequest, stream grpc.ServerStreamingServer[health.NodeWatchResourcesResponse]) error {
	ticker := time.NewTicker(healthPeriod)
	defer ticker.Stop()
	for {
		_, _, changed := p.gpus.get()
		if err := stream.Send(&health.NodeWatchResourcesResponse{Devices: p.health()}); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// health returns the health of all GPUs.
func (p *Plugin) health() (out []*health.DeviceHealth) {
	sick, _, _ := p.gpus.get()
	checked := p.gpus.checkedAt().Unix()
	for _, g := range p.Node.Devices() {
		d := &health.DeviceHealth{Device: &health.DeviceIdentifier{PoolName: p.NodeName, DeviceName: g.Name()}, Health: health.HealthStatus_HEALTHY,
			LastUpdatedTime: checked, HealthCheckTimeoutSeconds: int64(healthTimeout / time.Second)}
		if why, ok := sick[g.UUID]; ok {
			d.Health, d.Message = health.HealthStatus_UNHEALTHY, short(why)
		}
		out = append(out, d)
	}
	return out
}
