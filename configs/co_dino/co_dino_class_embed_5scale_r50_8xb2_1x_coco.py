_base_ = './co_dino_5scale_r50_8xb2_1x_coco.py'

# Classes are directions of a space with 512 dimensions, here learned ones. To
# have the directions of class names instead, make a file and name it:
#   python tools/make_class_embeddings.py --help
#   --cfg-options model.query_head.class_embeddings=FILE
model = dict(
    query_head=dict(
        type='mmext.CoDINOClassEmbedHead',
        class_embeddings=None,
        class_embed_dims=None,
        mode='classifier',
    )
)
