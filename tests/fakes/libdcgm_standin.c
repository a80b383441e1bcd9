/* A stand-in for libdcgm under NVIDIA's own Python bindings: one GPU, by the real clock.
 *
 * Our own code; it has only the calls that detector/telemetry/dcgm_engine.py makes through them.
 * UUID_AT and NAME_AT are offsets that the test reads from the bindings' structures.
 */
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef struct {
    uint32_t version;
    uint16_t field;
    int16_t type;
    int32_t status;
    int64_t ts;
    union { int64_t i64; double dbl; char text[4096]; } value;
} value_t;
typedef struct { uint32_t version, group, entity; uint16_t field; int16_t type; int32_t status;
                 uint32_t unused; int64_t ts;
                 union { int64_t i64; double dbl; char text[4096]; } value; } value2_t;
typedef struct { uint16_t major, minor; uint32_t count; uint16_t fields[64]; } metrics_t;
typedef struct { uint32_t version, unused, gpu, count; metrics_t groups[10]; } all_metrics_t;
typedef int (*told_t)(uint32_t, uint32_t, value_t *, int, void *);
typedef struct { uintptr_t group, fields; int64_t start, every; } watch_t;

enum { MOST = 64 };
static int numbers = 1, watching;
static struct { int count; uint16_t ids[128]; } lists[MOST];
static watch_t watches[MOST];

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static void sample(value_t *v, uint16_t field, int64_t ts, int first) {
    memset(v, 0, 64);
    v->field = field, v->ts = ts, v->type = 'i';
    switch (field) {
    case 1004: v->type = 'd', v->value.dbl = first ? 140737488355328.0 : 0.6; break;
    case 1001: v->type = 'd', v->value.dbl = first ? 140737488355328.0 : 0.9; break;
    case 155: v->type = 'd', v->value.dbl = 650.0; break;
    case 100: v->value.i64 = 1500; break;
    case 113: v->value.i64 = 1980; break;
    case 203: v->value.i64 = 2147483632; break; /* a blank of 32 bits */
    default: v->status = -6;
    }
}

static int told(uintptr_t group, uintptr_t fields, int64_t since, told_t call, void *user,
                int64_t *next) {
    static value_t v;
    int64_t now = now_us(), newest = 0;
    for (int i = 0; i < watching; i++) {
        watch_t *w = &watches[i];
        if (w->group != group || w->fields != fields) continue;
        int64_t last = w->start + (now - w->start) / w->every * w->every;
        for (int f = 0; f < lists[fields].count; f++)
            for (int64_t ts = next ? w->start : last; ts <= last; ts += w->every) {
                if (ts < since) continue;
                sample(&v, lists[fields].ids[f], ts, ts == w->start);
                newest = ts > newest ? ts : newest;
                call(1, 0, &v, 1, user);
            }
    }
    if (next) *next = newest ? newest + 1 : since;
    return 0;
}

int dcgmInit(void **h) { (void)h; return 0; }
int dcgmShutdown(void) { return 0; }
int dcgmConnect_v2(const char *to, void *p, void **h) { (void)to, (void)p; *h = (void *)1; return 0; }
int dcgmConnect_v3(const char *to, void *p, void **h) {
    *h = (void *)1;
    (void)p;
    return strcmp(to, "tcp://127.0.0.1:5555") == 0 ? 0 : -21;
}
int dcgmDisconnect(void *h) { (void)h; return 0; }
int dcgmGetAllDevices(void *h, uint32_t *ids, int *n) { (void)h; ids[0] = 0, *n = 1; return 0; }
int dcgmGetAllSupportedDevices(void *h, uint32_t *ids, int *n) { return dcgmGetAllDevices(h, ids, n); }
int dcgmGetDeviceAttributes(void *h, int gpu, char *told) {
    (void)h, (void)gpu;
    strcpy(told + UUID_AT, "GPU-0"), strcpy(told + NAME_AT, "NVIDIA H100");
    return 0;
}
int dcgmGetGpuInstanceHierarchy(void *h, uint32_t *tree) { (void)h; tree[1] = 0; return 0; }
int dcgmEntitiesGetLatestValues(void *h, void *e, uint32_t n, uint16_t *f, uint32_t m, uint32_t flags,
                                value2_t *v) {
    (void)h, (void)e, (void)n, (void)f, (void)m, (void)flags;
    v->status = 0, v->value.i64 = 3;
    return 0;
}
int dcgmProfGetSupportedMetricGroups(void *h, all_metrics_t *told) {
    (void)h;
    told->count = 1, told->groups[0].count = 2;
    told->groups[0].fields[0] = 1001, told->groups[0].fields[1] = 1004;
    return 0;
}
int dcgmGroupCreate(void *h, int type, const char *name, void **id) {
    (void)h, (void)type, (void)name;
    *id = (void *)(uintptr_t)numbers++;
    return 0;
}
int dcgmGroupAddEntity(void *h, void *g, int kind, int id) { (void)h, (void)g, (void)kind, (void)id; return 0; }
int dcgmGroupDestroy(void *h, void *g) { (void)h, (void)g; return 0; }
int dcgmFieldGroupCreate(void *h, int n, uint16_t *ids, const char *name, void **id) {
    (void)h, (void)name;
    lists[numbers].count = n;
    memcpy(lists[numbers].ids, ids, 2 * n);
    *id = (void *)(uintptr_t)numbers++;
    return 0;
}
int dcgmFieldGroupDestroy(void *h, void *f) { (void)h, (void)f; return 0; }
int dcgmWatchFields(void *h, uintptr_t g, uintptr_t f, int64_t every, double age, int most) {
    (void)h;
    if (age < 60.0 || most < 1) return -1;
    watches[watching++] = (watch_t){g, f, now_us(), every};
    return 0;
}
int dcgmUnwatchFields(void *h, void *g, void *f) { (void)h, (void)g, (void)f; return 0; }
int dcgmUpdateAllFields(void *h, int wait) { (void)h, (void)wait; return 0; }
int dcgmGetLatestValues_v2(void *h, uintptr_t g, uintptr_t f, told_t call, void *user) {
    (void)h;
    return told(g, f, 0, call, user, 0);
}
int dcgmGetValuesSince_v2(void *h, uintptr_t g, uintptr_t f, int64_t since, int64_t *next, told_t call,
                          void *user) {
    (void)h;
    return told(g, f, since, call, user, next);
}
int DcgmFieldsInit(void) { return 0; }
void *DcgmFieldGetById(uint16_t id) {
    static char meta[512];
    return id < 1100 ? memset(meta, 0, sizeof meta) : 0;
}
