_base_ = './co_dino_r18_shapes.py'

# Learned directions, so that nothing has to be made first.
model = dict(query_head=dict(type='mmext.CoDINOClassEmbedHead'))
