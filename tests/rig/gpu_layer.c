/* An OpenCL layer that lets OpenVINO's own GPU plugin run on Intel's OpenCL runtime for CPUs.
 *
 * The Khronos loader (libOpenCL.so.1) asks the libraries in OPENCL_LAYERS for a table of functions to call instead of
 * the driver's. This one copies the driver's table and replaces six of its entries:
 *
 *  - clGetDeviceIDs, clGetDeviceInfo: the CPU is a GPU, of a vendor other than Intel. The plugin then takes its generic
 *    path: OpenCL C kernels, no binaries for Intel's GPUs. Intel's subgroup extensions are hidden as well, so that it
 *    picks reference kernels. Those that use subgroups rely on sizes that the CPU runtime does not keep, and compute
 *    wrong results. The device's name is what OV_HSDAG_RIG_GPU says, if anything. OV_HSDAG_RIG_GPUS=2 makes two GPUs of
 *    it, each with half of its cores, by OpenCL's sub-devices.
 *  - clCreateCommandQueue, clCreateCommandQueueWithProperties: commands run in order. In a queue that runs them in any
 *    order, as the plugin asks for, inferences are wrong once in a hundred times on a busy machine.
 *  - clCreateProgramWithSource: corrects kernels, see below.
 *  - clReleaseProgram: does nothing. The plugin asks kernels for their program after it released it, which OpenCL
 *    allows and the CPU runtime does not survive. Programs stay until the process ends.
 *
 * The few declarations below stand for Khronos' headers (CL/cl.h, CL/cl_icd.h, CL/cl_layer.h), which are in no package
 * that installs without root. Their values, and the order of the table, are part of OpenCL's binary interface.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct platform* cl_platform_id;
typedef struct device* cl_device_id;
typedef struct context* cl_context;
typedef struct program* cl_program;
typedef struct queue* cl_command_queue;

enum { CL_SUCCESS = 0, CL_OUT_OF_HOST_MEMORY = -6, CL_INVALID_VALUE = -30 };
enum { CL_DEVICE_TYPE = 0x1000, CL_DEVICE_VENDOR_ID = 0x1001, CL_DEVICE_NAME = 0x102B, CL_DEVICE_EXTENSIONS = 0x1030 };
enum { CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002, CL_DEVICE_PARTITION_EQUALLY = 0x1086 };
enum { MOST_GPUS = 8, MAX_PARTS = 1024 };
enum { CL_QUEUE_PROPERTIES = 0x1093, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE = 1 << 0 };
enum { CL_LAYER_API_VERSION = 0x4240, CL_LAYER_NAME = 0x4241, CL_LAYER_API_VERSION_100 = 100 };
static const uint64_t CL_DEVICE_TYPE_GPU = 1 << 2, CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;

/* Places in the table. */
enum {
    GET_DEVICE_IDS = 2,
    GET_DEVICE_INFO = 3,
    CREATE_COMMAND_QUEUE = 9,
    CREATE_PROGRAM_WITH_SOURCE = 26,
    RELEASE_PROGRAM = 29,
    CREATE_SUB_DEVICES = 93,
    CREATE_COMMAND_QUEUE_WITH_PROPERTIES = 123,
    TABLE_SIZE = 512
};

static const uint32_t OTHER_VENDOR = 0x1002;

static const void* table[TABLE_SIZE];
static int32_t (*next_get_device_ids)(cl_platform_id, uint64_t, uint32_t, cl_device_id*, uint32_t*);
static int32_t (*next_get_device_info)(cl_device_id, uint32_t, size_t, void*, size_t*);

static int32_t (*next_create_sub_devices)(cl_device_id, const intptr_t*, uint32_t, cl_device_id*, uint32_t*);
static cl_command_queue (*next_create_command_queue)(cl_context, cl_device_id, uint64_t, int32_t*);
static cl_command_queue (*next_create_command_queue_with_properties)(cl_context, cl_device_id, const uint64_t*,
                                                                     int32_t*);
static cl_program (*next_create_program_with_source)(cl_context, uint32_t, const char**, const size_t*, int32_t*);

/* How many GPUs the CPU is to pass for. */
static uint32_t wanted_gpus(void) {
    const char* text = getenv("OV_HSDAG_RIG_GPUS");
    int number = text ? atoi(text) : 1;
    return number < 1 ? 1 : number > MOST_GPUS ? MOST_GPUS : (uint32_t)number;
}

/* The devices that are listed: the runtime's own one, or equal parts of it, which are devices of their own. */
static cl_device_id gpus[MOST_GPUS];
static uint32_t gpu_count;
static pthread_once_t listed = PTHREAD_ONCE_INIT;
static cl_device_id whole;

static void list_gpus(void) {
    uint32_t wanted = wanted_gpus(), units = 0;
    gpus[0] = whole;
    gpu_count = 1;
    if (wanted == 1) return;
    next_get_device_info(whole, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    intptr_t parts[] = {CL_DEVICE_PARTITION_EQUALLY, units / wanted, 0};
    uint32_t made = 0;
    cl_device_id found[MAX_PARTS];
    if (units < wanted || next_create_sub_devices(whole, parts, MAX_PARTS, found, &made) != CL_SUCCESS || made < wanted)
        return;
    gpu_count = wanted;
    for (uint32_t i = 0; i < wanted; ++i) gpus[i] = found[i];
}

static int32_t get_device_ids(cl_platform_id platform, uint64_t type, uint32_t entries, cl_device_id* devices,
                              uint32_t* count) {
    cl_device_id device = NULL;
    int32_t status =
        next_get_device_ids(platform, type == CL_DEVICE_TYPE_GPU ? CL_DEVICE_TYPE_ALL : type, 1, &device, NULL);
    if (status != CL_SUCCESS) return status;
    if (devices && entries == 0) return CL_INVALID_VALUE;
    whole = device;
    pthread_once(&listed, list_gpus);
    for (uint32_t i = 0; devices && i < entries && i < gpu_count; ++i) devices[i] = gpus[i];
    if (count) *count = gpu_count;
    return CL_SUCCESS;
}

/* How OpenCL answers a query: with what was asked for, its length, or both. */
static int32_t answer(const void* what, size_t length, size_t size, void* value, size_t* written) {
    if (value && size < length) return CL_INVALID_VALUE;
    if (value) memcpy(value, what, length);
    if (written) *written = length;
    return CL_SUCCESS;
}

/* Makes names of extensions unknown, in place, so that the text keeps its length. */
static void hide(char* extensions, const char* prefix) {
    for (char* at = extensions; (at = strstr(at, prefix)); ++at)
        if (at == extensions || at[-1] == ' ') memset(at, 'x', strcspn(at, " "));
}

static int32_t get_device_info(cl_device_id device, uint32_t query, size_t size, void* value, size_t* written) {
    const char* name = query == CL_DEVICE_NAME ? getenv("OV_HSDAG_RIG_GPU") : NULL;
    if (name) return answer(name, strlen(name) + 1, size, value, written);
    int32_t status = next_get_device_info(device, query, size, value, written);
    if (status != CL_SUCCESS || !value) return status;
    if (query == CL_DEVICE_TYPE) memcpy(value, &CL_DEVICE_TYPE_GPU, sizeof CL_DEVICE_TYPE_GPU);
    if (query == CL_DEVICE_VENDOR_ID) {
        /* The plugin takes two devices that answer alike for one. */
        uint32_t vendor = OTHER_VENDOR;
        for (uint32_t i = 0; i < gpu_count; ++i)
            if (gpus[i] == device) vendor += i;
        memcpy(value, &vendor, sizeof vendor);
    }
    if (query == CL_DEVICE_EXTENSIONS) {
        hide(value, "cl_intel_subgroups");
        hide(value, "cl_intel_required_subgroup_size");
    }
    return status;
}

static cl_command_queue create_command_queue(cl_context context, cl_device_id device, uint64_t properties,
                                             int32_t* status) {
    return next_create_command_queue(context, device, properties & ~(uint64_t)CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE,
                                     status);
}

/* `properties` are pairs of a key and a value, ended by a zero. */
static cl_command_queue create_command_queue_with_properties(cl_context context, cl_device_id device,
                                                             const uint64_t* properties, int32_t* status) {
    uint64_t ours[2 * 16 + 1] = {0};
    for (size_t i = 0; properties && properties[i]; i += 2) {
        if (i + 2 >= sizeof ours / sizeof *ours) {
            if (status) *status = CL_INVALID_VALUE;
            return NULL;
        }
        ours[i] = properties[i];
        ours[i + 1] = properties[i + 1];
        if (ours[i] == CL_QUEUE_PROPERTIES) ours[i + 1] &= ~(uint64_t)CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;
    }
    return next_create_command_queue_with_properties(context, device, properties ? ours : NULL, status);
}

/* What goes before every kernel. Where the compiler puts 32 work-items into a vector, as in kernels of int8 models, the
 * runtime lacks the functions that round a float to 8 bits (convert_char32_sat_rte); of their parts it lacks none. */
static const char prelude[] =
    "#define convert_char_sat_rte(x) convert_char(clamp(rint(convert_float(x)), -128.0f, 127.0f))\n"
    "#define convert_uchar_sat_rte(x) convert_uchar(clamp(rint(convert_float(x)), 0.0f, 255.0f))\n";

/* What the plugin's kernels say, and what they have to say to be right on a CPU. */
static const struct {
    const char *from, *to;
    int fault; /* of the plugin, and not of the runtime */
} corrections[] = {
    /* The compiler knows this extension although it is hidden, and group_normalization_fsv16 uses it: with subgroups of
       a given size the runtime's sums over a work-group are wrong. */
    {"cl_intel_required_subgroup_size", "no_required_subgroup_size", 0},
    /* It takes a work-item's place among 16 features from its subgroup, narrower where a CPU has no AVX-512. */
    {"get_sub_group_local_id()%FSV", "get_global_id(0)%FSV", 0},
    /* permute_f_y_axes (a Transpose of the two axes behind the batch): work-items exchange values through local memory
       without a barrier and rely on a GPU, which runs a group of them in step; a CPU runs one after the other. Each
       loop begins with this. The second one reads what the first one of all work-items wrote. */
    {"__attribute__((opencl_unroll_hint(J_TIMES)))",
     "barrier(CLK_LOCAL_MEM_FENCE); __attribute__((opencl_unroll_hint(J_TIMES)))", 1},
    /* fully_connected_gpu_bf_io_gemm, which GPUs of Intel hardly get (a dense layer on one row): the macro names its
       argument more than once, and without parentheses. Wrong for GELU and Swish on any device. */
    {"ACTIVATION(slm[0] + bias, ", "ACTIVATION((slm[0] + bias), ", 1},
};
enum { CORRECTIONS = sizeof corrections / sizeof *corrections };

/* Whether the plugin's faults are to stay, for tools/upstream/. */
static int plain(void) {
    const char* kernels = getenv("OV_HSDAG_RIG_KERNELS");
    return kernels && !strcmp(kernels, "plain");
}

/* The kernel's source with corrections, to be freed; NULL without memory. */
static char* corrected(const char* source, size_t length) {
    char* result = malloc(length + 1);
    if (!result) return NULL;
    memcpy(result, source, length);
    result[length] = '\0';
    for (size_t i = 0; i < CORRECTIONS; ++i) {
        if (corrections[i].fault && plain()) continue;
        size_t from = strlen(corrections[i].from), to = strlen(corrections[i].to);
        char* at = result;
        while ((at = strstr(at, corrections[i].from))) {
            size_t before = (size_t)(at - result), after = strlen(at + from) + 1;
            char* longer = malloc(before + to + after);
            if (longer) {
                memcpy(longer, result, before);
                memcpy(longer + before, corrections[i].to, to);
                memcpy(longer + before + to, at + from, after);
            }
            free(result);
            if (!longer) return NULL;
            result = longer;
            at = result + before + to;
        }
    }
    return result;
}

static cl_program create_program_with_source(cl_context context, uint32_t count, const char** strings,
                                             const size_t* lengths, int32_t* status) {
    char** ours = calloc(count + 1, sizeof *ours); /* the first is the prelude */
    cl_program program = NULL;
    uint32_t made = 0;
    for (; ours && made <= count; ++made) {
        const char* source = made ? strings[made - 1] : prelude;
        size_t length = made && lengths && lengths[made - 1] ? lengths[made - 1] : strlen(source);
        if (!(ours[made] = corrected(source, length))) break;
    }
    if (ours && made == count + 1)
        program = next_create_program_with_source(context, count + 1, (const char**)ours, NULL, status);
    else if (status)
        *status = CL_OUT_OF_HOST_MEMORY;
    for (uint32_t i = 0; i < made; ++i) free(ours[i]);
    free(ours);
    return program;
}

static int32_t release_program(cl_program program) {
    (void)program;
    return CL_SUCCESS;
}

/* What the loader calls, in this order. */
int32_t clGetLayerInfo(uint32_t query, size_t size, void* value, size_t* written) {
    static const char name[] = "a CPU as a GPU, for tests";
    static const uint32_t version = CL_LAYER_API_VERSION_100;
    if (query == CL_LAYER_API_VERSION) return answer(&version, sizeof version, size, value, written);
    if (query == CL_LAYER_NAME) return answer(name, sizeof name, size, value, written);
    return CL_INVALID_VALUE;
}

int32_t clInitLayerWithProperties(uint32_t entries, const void* const* target, uint32_t* layer_entries,
                                  const void* const** layer, const uint64_t* properties) {
    (void)properties;
    if (!target || !layer_entries || !layer || entries <= CREATE_COMMAND_QUEUE_WITH_PROPERTIES || entries > TABLE_SIZE)
        return CL_INVALID_VALUE;
    memcpy(table, target, entries * sizeof *table);
    next_get_device_ids = target[GET_DEVICE_IDS];
    next_get_device_info = target[GET_DEVICE_INFO];
    table[GET_DEVICE_IDS] = get_device_ids;
    table[GET_DEVICE_INFO] = get_device_info;
    next_create_sub_devices = target[CREATE_SUB_DEVICES];
    next_create_command_queue = target[CREATE_COMMAND_QUEUE];
    table[CREATE_COMMAND_QUEUE] = create_command_queue;
    next_create_command_queue_with_properties = target[CREATE_COMMAND_QUEUE_WITH_PROPERTIES];
    table[CREATE_COMMAND_QUEUE_WITH_PROPERTIES] = create_command_queue_with_properties;
    next_create_program_with_source = target[CREATE_PROGRAM_WITH_SOURCE];
    table[CREATE_PROGRAM_WITH_SOURCE] = create_program_with_source;
    table[RELEASE_PROGRAM] = release_program;
    *layer_entries = entries;
    *layer = table;
    return CL_SUCCESS;
}
