/* What copies out of and into shared memory can reach on this device at most: a C loop around vkCmdCopyBuffer between a
 * sealed memfd, imported with VK_EXT_external_memory_host, and device-local memory; one copy a submission, and its fence
 * waited for. One JSON object on standard output.
 *
 * Usage: copy_limit BYTES COPIES DEVICE
 *   BYTES    of one copy, a multiple of 64 KiB
 *   COPIES   timed each way, after three that are not
 *   DEVICE   index into vkEnumeratePhysicalDevices, or a deviceUUID in hex
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <vulkan/vulkan.h>

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

static uint32_t type_of(const VkPhysicalDeviceMemoryProperties *mem, uint32_t bits, VkMemoryPropertyFlags wanted) {
    for (uint32_t k = 0; k < mem->memoryTypeCount; k++)
        if ((bits >> k & 1) && (mem->memoryTypes[k].propertyFlags & wanted) == wanted) return k;
    fprintf(stderr, "no memory type with the flags %#x\n", wanted);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: %s bytes copies device\n", argv[0]), 2;
    VkDeviceSize size = strtoull(argv[1], 0, 10);
    int copies = atoi(argv[2]);
    const char *wanted = argv[3];
    uint32_t index = (uint32_t)atoi(wanted);

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
    if (index >= count) return fprintf(stderr, "no device %s\n", wanted), 1;
    VkPhysicalDevice pd = physical[index];
    VkPhysicalDeviceProperties props;
    vkGetPhysicalDeviceProperties(pd, &props);
    VkPhysicalDeviceMemoryProperties mem;
    vkGetPhysicalDeviceMemoryProperties(pd, &mem);
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
    const char *extensions[] = {"VK_EXT_external_memory_host"};
    VkDeviceCreateInfo dci = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .queueCreateInfoCount = 1, .pQueueCreateInfos = &qci, .enabledExtensionCount = 1, .ppEnabledExtensionNames = extensions};
    VkDevice device;
    CHECK(vkCreateDevice(pd, &dci, 0, &device));
    VkQueue queue;
    vkGetDeviceQueue(device, family, 0, &queue);

    int file = memfd_create("copy_limit", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0 || ftruncate(file, (off_t)size) || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) return perror("memfd"), 1;
    unsigned char *pages = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pages == MAP_FAILED) return perror("mmap"), 1;
    for (VkDeviceSize i = 0; i < size; i++) pages[i] = (unsigned char)(i * 31 + (i >> 12));

    VkBuffer buffers[2]; /* shared, own */
    const VkExternalMemoryHandleTypeFlagBits host = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
    for (int i = 0; i < 2; i++) {
        VkExternalMemoryBufferCreateInfo external = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO, .handleTypes = host};
        VkBufferCreateInfo bci = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .pNext = i ? 0 : &external, .size = size, .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
        CHECK(vkCreateBuffer(device, &bci, 0, &buffers[i]));
        VkMemoryRequirements req;
        vkGetBufferMemoryRequirements(device, buffers[i], &req);
        VkMemoryAllocateInfo mai = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = req.size};
        VkImportMemoryHostPointerInfoEXT import = {.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT, .handleType = host, .pHostPointer = pages};
        if (i == 0) {
            PFN_vkGetMemoryHostPointerPropertiesEXT accepts = (PFN_vkGetMemoryHostPointerPropertiesEXT)vkGetDeviceProcAddr(device, "vkGetMemoryHostPointerPropertiesEXT");
            VkMemoryHostPointerPropertiesEXT accepted = {.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
            CHECK(accepts(device, host, pages, &accepted));
            mai.pNext = &import, mai.allocationSize = size;
            mai.memoryTypeIndex = type_of(&mem, req.memoryTypeBits & accepted.memoryTypeBits, VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
        } else {
            mai.memoryTypeIndex = type_of(&mem, req.memoryTypeBits, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
        }
        VkDeviceMemory memory;
        CHECK(vkAllocateMemory(device, &mai, 0, &memory));
        CHECK(vkBindBufferMemory(device, buffers[i], memory, 0));
    }
    VkCommandPoolCreateInfo pci = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, .queueFamilyIndex = family};
    VkCommandPool pool;
    CHECK(vkCreateCommandPool(device, &pci, 0, &pool));
    VkCommandBuffer cmd;
    VkCommandBufferAllocateInfo cai = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = pool, .commandBufferCount = 1};
    CHECK(vkAllocateCommandBuffers(device, &cai, &cmd));
    VkFence fence;
    VkFenceCreateInfo fci = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    CHECK(vkCreateFence(device, &fci, 0, &fence));

    double rate[2];
    for (int way = 0; way < 2; way++) { /* up, down */
        double start = 0;
        for (int i = -3; i < copies; i++) {
            if (i == 0) start = now();
            VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
            CHECK(vkBeginCommandBuffer(cmd, &begin));
            VkBufferCopy region = {.size = size};
            vkCmdCopyBuffer(cmd, buffers[way], buffers[!way], 1, &region);
            VkMemoryBarrier mb = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT, .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
            vkCmdPipelineBarrier(cmd, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &mb, 0, 0, 0, 0);
            CHECK(vkEndCommandBuffer(cmd));
            VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &cmd};
            CHECK(vkQueueSubmit(queue, 1, &submit, fence));
            CHECK(vkWaitForFences(device, 1, &fence, 1, UINT64_MAX));
            CHECK(vkResetFences(device, 1, &fence));
        }
        rate[way] = (double)size * copies / (now() - start) / 1e9;
        if (way == 0) memset(pages, 0, size); /* to be brought back */
    }
    for (VkDeviceSize i = 0; i < size; i++)
        if (pages[i] != (unsigned char)(i * 31 + (i >> 12))) return fprintf(stderr, "wrong bytes came back\n"), 1;
    printf("{\"device\": \"%s\", \"bytes\": %llu, \"copies\": %d, \"up_gb_per_s\": %.3f, \"down_gb_per_s\": %.3f}\n",
           props.deviceName, (unsigned long long)size, copies, rate[0], rate[1]);
    return 0;
}
