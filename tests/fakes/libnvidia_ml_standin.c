/* A stand-in for the driver's libnvidia-ml under the real nvidia-ml-py: a whole GPU, and one that
 * is divided. Our own code; the calls that are missing are those that an old driver lacks.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { int gpu, instance; } device_t;
typedef struct { double at_s; int gpu, instance; } sample_t;
typedef struct { unsigned id; int status; double value; const char *names[3]; } metric_t;
typedef struct { unsigned version, count; sample_t *first, *second; metric_t metrics[]; } request_t;

static device_t gpus[2] = {{0, -1}, {1, -1}}, instances[2] = {{1, 7}, {1, 2}};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int nvmlInitWithFlags(unsigned flags) { return (int)flags; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "an error"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device_t **d) { *d = &gpus[i]; return 0; }
int nvmlDeviceGetUUID(device_t *d, char *text, unsigned n) { snprintf(text, n, "GPU-%d", d->gpu); return 0; }
int nvmlDeviceGetName(device_t *d, char *text, unsigned n) {
    const char *profile = d->instance < 0 ? "" : d->instance == 7 ? " MIG 1g.10gb" : " MIG 1c.3g.40gb";
    snprintf(text, n, "NVIDIA H100 80GB HBM3%s", profile);
    return 0;
}
int nvmlDeviceGetMinorNumber(device_t *d, unsigned *n) { *n = 7 - d->gpu; return 0; }
int nvmlDeviceGetClockInfo(device_t *d, int kind, unsigned *mhz) { (void)d; *mhz = kind == 1 ? 1500 : 9; return 0; }
int nvmlDeviceGetMaxClockInfo(device_t *d, int kind, unsigned *mhz) { (void)d; *mhz = kind == 1 ? 1980 : 9; return 0; }
int nvmlDeviceGetPowerUsage(device_t *d, unsigned *mw) { (void)d; *mw = 650000; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(device_t *d, uint64_t *mj) { (void)d; *mj = 5000; return 0; }
int nvmlDeviceGetUtilizationRates(device_t *d, unsigned *use) {
    use[0] = 100;
    return d->gpu ? 3 : 0; /* not supported where it is divided */
}
int nvmlDeviceGetMigMode(device_t *d, unsigned *now, unsigned *pending) { *now = *pending = d->gpu; return 0; }
int nvmlDeviceGetMaxMigDeviceCount(device_t *d, unsigned *n) { (void)d; *n = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(device_t *d, unsigned i, device_t **mig) {
    (void)d;
    if (i != 0 && i != 3) return 6; /* places may be empty */
    *mig = &instances[i ? 1 : 0];
    return 0;
}
int nvmlDeviceGetGpuInstanceId(device_t *d, unsigned *id) { *id = (unsigned)d->instance; return 0; }
int nvmlGpmQueryDeviceSupport(device_t *d, unsigned *told) { (void)d; told[1] = told[0] == 1; return 0; }
int nvmlGpmSampleAlloc(sample_t **s) { *s = calloc(1, sizeof **s); return 0; }
int nvmlGpmSampleFree(sample_t *s) { free(s); return 0; }
int nvmlGpmMigSampleGet(device_t *d, unsigned id, sample_t *s) {
    *s = (sample_t){now_s(), d->gpu, (int)id};
    return 0;
}
int nvmlGpmSampleGet(device_t *d, sample_t *s) {
    *s = (sample_t){now_s(), d->gpu, -1};
    return d->gpu ? 3 : 0;
}
int nvmlGpmMetricsGet(request_t *r) {
    sample_t *a = r->first, *b = r->second;
    if (r->version != 1 || a->instance != b->instance || b->at_s - a->at_s < 0.1) return 2;
    for (unsigned i = 0; i < r->count; i++) {
        metric_t *m = &r->metrics[i];
        m->status = m->id == 5 || (m->id == 21 && b->instance < 0) ? 0 : 3;
        m->value = m->id == 21 ? 2.0 : b->instance < 0 ? 60.0 : b->instance * 10.0;
    }
    return 0;
}
