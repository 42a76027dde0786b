/* What a Vulkan job queue can reach on this device at most: a C loop that records, submits and fences axpy dispatches,
 * with nothing around it. One JSON object on standard output.
 *
 * Usage: dispatch_limit axpy.spv JOBS BATCHES BARRIER ELEMENTS IN_FLIGHT DEVICE
 *   JOBS       dispatches per batch (one command buffer, one submit, one fence)
 *   BATCHES    batches timed, after five that are not
 *   BARRIER    1: a compute-to-compute memory barrier after every dispatch; 0: none (independent jobs)
 *   ELEMENTS   floats per buffer
 *   IN_FLIGHT  batches kept in flight (1 = wait for each before recording the next)
 *   DEVICE     index into vkEnumeratePhysicalDevices, or a deviceUUID in hex
 */
#include <string.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <vulkan/vulkan.h>

#define MAX_IN_FLIGHT 8
#define CHECK(call)                                                        \
    do {                                                                   \
        VkResult r_ = (call);                                              \
        if (r_ != VK_SUCCESS) {                                            \
            fprintf(stderr, "%s = %d (line %d)\n", #call, r_, __LINE__);   \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: %s axpy.spv [jobs batches barrier elements in_flight device]\n", argv[0]), 2;
    int jobs = argc > 2 ? atoi(argv[2]) : 64, batches = argc > 3 ? atoi(argv[3]) : 100, barrier = argc > 4 ? atoi(argv[4]) : 1;
    int elements = argc > 5 ? atoi(argv[5]) : 64, flight = argc > 6 ? atoi(argv[6]) : 1;
    const char *wanted = argc > 7 ? argv[7] : "0";
    uint32_t index = (uint32_t)atoi(wanted);
    if (flight < 1 || flight > MAX_IN_FLIGHT) flight = 1;

    VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2};
    VkInstanceCreateInfo ici = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app};
    VkInstance instance;
    CHECK(vkCreateInstance(&ici, 0, &instance));
    uint32_t count = 16;
    VkPhysicalDevice physical[16];
    vkEnumeratePhysicalDevices(instance, &count, physical);
    if (strlen(wanted) == 32) { /* a UUID */
        for (index = 0; index < count; index++) {
            VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
            VkPhysicalDeviceProperties2 p2 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &id};
            vkGetPhysicalDeviceProperties2(physical[index], &p2);
            char hex[33];
            for (int i = 0; i < 16; i++) sprintf(hex + 2 * i, "%02x", id.deviceUUID[i]);
            if (!strcmp(hex, wanted)) break;
        }
    }
    if (index >= count) return fprintf(stderr, "no device %u\n", index), 1;
    VkPhysicalDevice pd = physical[index];
    VkPhysicalDeviceProperties props;
    vkGetPhysicalDeviceProperties(pd, &props);
    uint32_t nfam = 16, family = 0;
    VkQueueFamilyProperties fam[16];
    vkGetPhysicalDeviceQueueFamilyProperties(pd, &nfam, fam);
    int best = -1; /* compute without graphics preferred, as the daemon does */
    for (uint32_t i = 0; i < nfam; i++) {
        int score = !(fam[i].queueFlags & VK_QUEUE_COMPUTE_BIT) ? -1 : (fam[i].queueFlags & VK_QUEUE_GRAPHICS_BIT) ? 0 : 1;
        if (score > best) best = score, family = i;
    }
    if (best < 0) return fprintf(stderr, "no compute queue\n"), 1;

    float priority = 1;
    VkDeviceQueueCreateInfo qci = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueFamilyIndex = family, .queueCount = 1, .pQueuePriorities = &priority};
    const char *extensions[] = {"VK_KHR_push_descriptor"};
    VkPhysicalDeviceFeatures features = {.robustBufferAccess = VK_TRUE}; /* as the daemon must */
    VkDeviceCreateInfo dci = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .queueCreateInfoCount = 1, .pQueueCreateInfos = &qci, .enabledExtensionCount = 1, .ppEnabledExtensionNames = extensions, .pEnabledFeatures = &features};
    VkDevice device;
    CHECK(vkCreateDevice(pd, &dci, 0, &device));
    VkQueue queue;
    vkGetDeviceQueue(device, family, 0, &queue);

    FILE *file = fopen(argv[1], "rb");
    if (!file) return perror(argv[1]), 1;
    static uint32_t code[1 << 16];
    size_t size = fread(code, 1, sizeof code, file);
    VkShaderModuleCreateInfo smi = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = size, .pCode = code};
    VkShaderModule module;
    CHECK(vkCreateShaderModule(device, &smi, 0, &module));
    VkDescriptorSetLayoutBinding bindings[2] = {
        {0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, 0},
        {1, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, 0}};
    VkDescriptorSetLayoutCreateInfo sli = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .flags = VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR, .bindingCount = 2, .pBindings = bindings};
    VkDescriptorSetLayout set_layout;
    CHECK(vkCreateDescriptorSetLayout(device, &sli, 0, &set_layout));
    VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, 8};
    VkPipelineLayoutCreateInfo pli = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1, .pSetLayouts = &set_layout, .pushConstantRangeCount = 1, .pPushConstantRanges = &range};
    VkPipelineLayout layout;
    CHECK(vkCreatePipelineLayout(device, &pli, 0, &layout));
    VkComputePipelineCreateInfo cpi = {.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO, .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = module, .pName = "main"}, .layout = layout};
    VkPipeline pipeline;
    CHECK(vkCreateComputePipelines(device, 0, 1, &cpi, 0, &pipeline));

    VkPhysicalDeviceMemoryProperties mem;
    vkGetPhysicalDeviceMemoryProperties(pd, &mem);
    VkBuffer buffers[2];
    for (int i = 0; i < 2; i++) {
        VkBufferCreateInfo bci = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = (VkDeviceSize)elements * 4, .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT};
        CHECK(vkCreateBuffer(device, &bci, 0, &buffers[i]));
        VkMemoryRequirements req;
        vkGetBufferMemoryRequirements(device, buffers[i], &req);
        uint32_t type = 0;
        for (uint32_t k = 0; k < mem.memoryTypeCount; k++)
            if ((req.memoryTypeBits >> k & 1) && (mem.memoryTypes[k].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)) { type = k; break; }
        VkMemoryAllocateInfo mai = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = req.size, .memoryTypeIndex = type};
        VkDeviceMemory memory;
        CHECK(vkAllocateMemory(device, &mai, 0, &memory));
        CHECK(vkBindBufferMemory(device, buffers[i], memory, 0));
    }
    VkCommandPoolCreateInfo pci = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, .queueFamilyIndex = family};
    VkCommandPool pool;
    CHECK(vkCreateCommandPool(device, &pci, 0, &pool));
    VkCommandBuffer cmd[MAX_IN_FLIGHT];
    VkCommandBufferAllocateInfo cai = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = pool, .commandBufferCount = MAX_IN_FLIGHT};
    CHECK(vkAllocateCommandBuffers(device, &cai, cmd));
    VkFence fence[MAX_IN_FLIGHT];
    for (int i = 0; i < MAX_IN_FLIGHT; i++) {
        VkFenceCreateInfo fci = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
        CHECK(vkCreateFence(device, &fci, 0, &fence[i]));
    }
    PFN_vkCmdPushDescriptorSetKHR push = (PFN_vkCmdPushDescriptorSetKHR)vkGetDeviceProcAddr(device, "vkCmdPushDescriptorSetKHR");

    double recording = 0, start = 0;
    int warm = 5;
    for (int b = -warm; b < batches; b++) {
        int s = (b + warm) % flight;
        if (b + warm >= flight) {
            CHECK(vkWaitForFences(device, 1, &fence[s], 1, UINT64_MAX));
            CHECK(vkResetFences(device, 1, &fence[s]));
        }
        if (b == 0) start = now();
        double t = now();
        VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
        CHECK(vkBeginCommandBuffer(cmd[s], &begin));
        for (int i = 0; i < jobs; i++) {
            VkDescriptorBufferInfo info[2] = {{buffers[0], 0, (VkDeviceSize)elements * 4}, {buffers[1], 0, (VkDeviceSize)elements * 4}};
            VkWriteDescriptorSet write[2] = {
                {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .dstBinding = 0, .descriptorCount = 1, .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .pBufferInfo = &info[0]},
                {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .dstBinding = 1, .descriptorCount = 1, .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .pBufferInfo = &info[1]}};
            struct { uint32_t n; float k; } constants = {(uint32_t)elements, 0.5f};
            vkCmdBindPipeline(cmd[s], VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
            push(cmd[s], VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 2, write);
            vkCmdPushConstants(cmd[s], layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, 8, &constants);
            vkCmdDispatch(cmd[s], (uint32_t)(elements + 63) / 64, 1, 1);
            if (barrier) {
                VkMemoryBarrier mb = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT, .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};
                vkCmdPipelineBarrier(cmd[s], VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &mb, 0, 0, 0, 0);
            }
        }
        CHECK(vkEndCommandBuffer(cmd[s]));
        if (b >= 0) recording += now() - t;
        VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &cmd[s]};
        CHECK(vkQueueSubmit(queue, 1, &submit, fence[s]));
    }
    CHECK(vkQueueWaitIdle(queue));
    double total = now() - start;
    double n = (double)jobs * batches;
    printf("{\"device\": \"%s\", \"jobs\": %d, \"batches\": %d, \"barrier\": %d, \"elements\": %d, \"in_flight\": %d, "
           "\"record_us_per_job\": %.3f, \"us_per_job\": %.3f, \"us_per_batch\": %.1f, \"jobs_per_s\": %.0f}\n",
           props.deviceName, jobs, batches, barrier, elements, flight, recording / n * 1e6, total / n * 1e6, total / batches * 1e6, n / total);
    return 0;
}
